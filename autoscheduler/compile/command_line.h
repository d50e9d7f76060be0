/** \file
 * The command line of a program that has subcommands.
 */
#ifndef DISTILE_COMMAND_LINE_H
#define DISTILE_COMMAND_LINE_H

namespace CLI {
class App;
}

namespace distile {

/** Runs the subcommand that the command line names, and returns the exit status. A failure prints a message.
 * `add_commands` adds the subcommands, which own their options. */
int run_command_line(const char *description, void (*add_commands)(CLI::App &app), int argc, char **argv);

}  // namespace distile

#endif
