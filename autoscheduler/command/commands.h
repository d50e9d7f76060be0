/** \file
 * The subcommands of the distile command. Each lies in a file of its own, which adds it to the command line.
 */
#ifndef DISTILE_COMMANDS_H
#define DISTILE_COMMANDS_H

#include "autoscheduler/bound/device_profile.h"
#include "plans/plan.h"
#include <string>

namespace CLI {
class App;
}

namespace distile {

void add_calibrate_command(CLI::App &app);
void add_experiment_command(CLI::App &app);
void add_info_command(CLI::App &app);
void add_masks_command(CLI::App &app);
/** `measure`, and the hidden `worker` that it starts. */
void add_measure_command(CLI::App &app);
void add_compile_command(CLI::App &app);
void add_plan_command(CLI::App &app);
void add_portable_command(CLI::App &app);
void add_profile_command(CLI::App &app);
void add_rank_command(CLI::App &app);
void add_report_command(CLI::App &app);
void add_scale_command(CLI::App &app);
void add_show_command(CLI::App &app);
void add_tune_command(CLI::App &app);

/** The device profile that an option names: a file, or a generic one that is compiled in. Throws FileError. */
DeviceProfile device_of_option(const std::string &file_or_name);

/** Prints a warning. */
void warn(const std::string &text);
/** The help of that option. */
extern const char *const device_option_help;
/** The help of an option that takes masks. */
extern const char *const mask_option_help;

/** Adds the option --math. */
void add_math_option(CLI::App &command, Math &math);

/** Adds the option --platform. */
void add_platform_option(CLI::App &command, std::string &name);

/** A line on the terminal that shows the progress of the work. It prints nothing if stderr is no terminal. */
class ProgressLine {
public:
    explicit ProgressLine(bool quiet);
    ~ProgressLine();
    ProgressLine(const ProgressLine &) = delete;
    ProgressLine &operator=(const ProgressLine &) = delete;

    /** `part` goes from 0 to 1. */
    void show(const std::string &what, double part);

private:
    bool shown_, started_ = false;
};

}  // namespace distile

#endif
