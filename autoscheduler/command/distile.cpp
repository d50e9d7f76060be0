/** \file
 * The distile command.
 */
#include "autoscheduler/command/commands.h"
#include "autoscheduler/compile/command_line.h"

namespace {

void add_commands(CLI::App &app) {
    using namespace distile;
    add_info_command(app);
    add_plan_command(app);
    add_portable_command(app);
    add_show_command(app);
    add_masks_command(app);
    add_calibrate_command(app);
    add_rank_command(app);
    add_tune_command(app);
    add_report_command(app);
    add_measure_command(app);
    add_experiment_command(app);
    add_profile_command(app);
    add_compile_command(app);
    add_scale_command(app);
}

}  // namespace

int main(int argc, char **argv) {
    return distile::run_command_line("distile: masked operators that compute only where a mask says so", add_commands,
                                     argc, argv);
}
