// Plans that ship, found for operators of the same shape.
#include "autoscheduler/bound/shipped_plans.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"
#include "tests/tools/bound_cases.h"
#include <nlohmann/json.hpp>
#include <string>

using namespace distile;

namespace {

std::string write(const TemporaryFolder &folder, const std::string &name, const Plan &plan) {
    return folder.write(name, to_json(plan).dump());
}

Operator with_activation(const char *epilogue) {
    nlohmann::json json = to_json(conv3x3_256());
    json["params"]["epilogue"] = epilogue;
    json["name"] = std::string("conv_") + epilogue;
    return parse_operator(json, "test");
}

/** The plan that the bound makes for code, with a time that says which operator it is of. */
Plan marked_plan(const Operator &op, const PlannedCode &planned, double us) {
    Plan plan = bound_plan(planned.name, op, planned.device, planned.code);
    plan.times.front().microseconds = us;
    return plan;
}

}  // namespace

TEST_CASE("A shipped plan serves operators of its shape with any activation", "[bound]") {
    const TemporaryFolder folder;
    const Operator relu = with_activation("relu"), silu = with_activation("silu");
    const std::vector<PlannedCode> of_relu = planned_codes(relu, cpu_backend(), false);
    const PlannedCode &planned = of_relu.front();
    CHECK(!shipped_plan(folder.path(), relu, planned));
    CHECK(!shipped_plan(folder.path() + "/missing", relu, planned));

    const std::string path = write(folder, "of_relu.json", marked_plan(relu, planned, 1234));
    const std::vector<ChosenPlan> chosen = shipped_or_bound_plans(folder.path(), silu, cpu_backend());
    REQUIRE(chosen.size() == of_relu.size());
    CHECK(chosen.front().shipped == path);
    CHECK(chosen.front().plan.op == silu);
    CHECK(chosen.front().plan.name.rfind("conv_silu_", 0) == 0);
    CHECK(chosen.front().plan.times.front().microseconds == 1234);
    // It is read again as a plan of this operator, with these times.
    const Plan again = read_plan(write(folder, "again.txt", chosen.front().plan));
    CHECK(again.times.front().microseconds == 1234);
    // No other code has one.
    for (size_t i = 1; i < chosen.size(); i++) {
        CHECK(chosen[i].shipped.empty());
        CHECK(chosen[i].plan.target == of_relu[i].code.target);
    }

    // The operator's own comes before others, whatever its file is called.
    const std::string own = write(folder, "z_own.json", marked_plan(silu, planned, 99));
    const auto found = shipped_plan(folder.path(), silu, planned);
    REQUIRE(found);
    CHECK(found->shipped == own);
    CHECK(found->plan.times.front().microseconds == 99);
}

TEST_CASE("Shipped plans serve pruned operators where their code multiplies with all weights", "[bound]") {
    const TemporaryFolder folder;
    const Operator op = conv3x3_256();
    Operator pruned = op;
    pruned.typical_zeros = .9;
    for (const PlannedCode &planned : planned_codes(op, cuda_backend(), true)) {
        write(folder, planned.name + ".json", marked_plan(op, planned, 1234));
    }
    int shipped = 0, skipping = 0;
    for (const ChosenPlan &chosen : shipped_or_bound_plans(folder.path(), pruned, cuda_backend(), true)) {
        CAPTURE(chosen.plan.name);
        const bool skips = chosen.plan.has(Language::Nonzeros);
        CHECK(chosen.shipped.empty() == skips);
        CHECK((chosen.plan.times.front().microseconds == 1234) == !skips);
        CHECK(chosen.plan.op == pruned);
        (skips ? skipping : shipped)++;
    }
    // In TF32 for two generations, and for older GPUs.
    CHECK(shipped == 3);
    CHECK(skipping == 1);
}

TEST_CASE("Shipped plans of other shapes, and files that are no plans, are passed over", "[bound]") {
    const TemporaryFolder folder;
    const Operator op = conv3x3_256();
    const PlannedCode planned = planned_codes(op, cpu_backend(), false).front();
    nlohmann::json json = to_json(op);
    json["params"]["stride_w"] = 2;
    const Operator strided = parse_operator(json, "test");
    write(folder, "strided.json", bound_plan("strided", strided, planned.device, planned.code));
    folder.write("broken.json", R"({"distile_plan": 2, "target": ")" + planned.code.target);
    json = to_json(bound_plan("later", op, planned.device, planned.code));
    json["distile_plan"] = 99;
    folder.write("later.json", json.dump());
    json = to_json(bound_plan("unbuildable", op, planned.device, planned.code));
    json["variants"][0]["code"]["halide"]["tile_h"] = -1;
    json.erase("profile");
    folder.write("unbuildable.json", json.dump());
    CHECK(!shipped_plan(folder.path(), op, planned));
    CHECK(shipped_plan(folder.path(), strided, planned));
}
