#include "plan.h"
#include "operator_schema.h"
#include <algorithm>
#include <cmath>
#include <iomanip>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

namespace distile {

namespace {

using nlohmann::json;

constexpr int plan_version = 1;
/** Far above what a schedule can use, and small enough that products of two knobs fit an int. */
constexpr int largest_knob = 4096;

[[noreturn]] void refuse(const std::string &where, const std::string &what) {
    throw FileError(where + ": " + what);
}

const json &member(const json &object, const char *name, json::value_t type, const std::string &where) {
    if (!object.is_object() || !object.contains(name)) {
        refuse(where, std::string("the member \"") + name + "\" is missing");
    }
    const json &value = object.at(name);
    if (value.type() != type) {
        refuse(where,
               std::string("the member \"") + name + "\" is " + value.type_name() + ", not " + json(type).type_name());
    }
    return value;
}

std::string name_member(const json &object, const std::string &where) {
    const json *value = object.is_object() && object.contains("name") ? &object.at("name") : nullptr;
    std::string name = value && value->is_string() ? value->get<std::string>() : "";
    if (!is_name(name)) {
        refuse(where, "\"name\" must be letters, digits and underscores");
    }
    return name;
}

std::string text_member(const json &object, const char *name, const std::string &where) {
    if (!object.is_object() || !object.contains(name) || !object.at(name).is_string()) {
        refuse(where, std::string("the member \"") + name + "\" is missing or not a string");
    }
    auto text = object.at(name).get<std::string>();
    // They are printed, and some characters steer a terminal.
    if (std::any_of(text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; })) {
        refuse(where, std::string("the member \"") + name + "\" holds control characters");
    }
    return text;
}

PlanVariant parse_variant(const json &json, const std::string &where) {
    PlanVariant variant;
    variant.name = name_member(json, where);
    if (json.contains("dense")) {
        if (!json.at("dense").is_boolean()) {
            refuse(where, "\"dense\" is not true or false");
        }
        variant.dense = json.at("dense").get<bool>();
    }
    if (!json.contains("theta")) {
        refuse(where, "the member \"theta\" is missing");
    }
    variant.theta = parse_theta(json.at("theta"), where);
    return variant;
}

PlanTime parse_time(const json &json, const Plan &plan, const std::string &where) {
    const auto number = [&](const char *name, double least, double most) {
        if (!json.is_object() || !json.contains(name) || !json.at(name).is_number() || json.at(name) < least ||
            json.at(name) > most) {
            refuse(where, std::string("\"") + name + "\" is missing or out of range");
        }
        return json.at(name).get<double>();
    };
    PlanTime time;
    time.variant = text_member(json, "variant", where);
    if (std::none_of(plan.variants.begin(), plan.variants.end(),
                     [&](const PlanVariant &variant) { return variant.name == time.variant; })) {
        refuse(where, "the plan has no variant \"" + time.variant + "\"");
    }
    for (const char *name : {"threads", "tiles"}) {
        if (json.is_object() && json.contains(name) && !json.at(name).is_number_integer()) {
            refuse(where, std::string("\"") + name + "\" is not an integer");
        }
    }
    time.threads = static_cast<int>(number("threads", 1, 4096));
    time.tiles = static_cast<int64_t>(number("tiles", 1, 1e12));
    time.microseconds = number("us", 1e-3, 1e12);
    return time;
}

}  // namespace

const PlanVariant *Plan::find(const std::string &name_or_index) const {
    for (const PlanVariant &variant : variants) {
        if (variant.name == name_or_index) {
            return &variant;
        }
    }
    for (size_t i = 0; i < variants.size(); i++) {
        if (std::to_string(i) == name_or_index) {
            return &variants[i];
        }
    }
    return nullptr;
}

Theta parse_theta(const json &json, const std::string &where) {
    if (!json.is_object()) {
        refuse(where, "the member \"theta\" is not an object");
    }
    Theta theta;
    for (const auto &[knob, value] : json.items()) {
        if (!is_name(knob)) {
            refuse(where, "the knob " + quoted(knob) + " is no name of letters, digits and underscores");
        }
        if (!value.is_number_integer() || value < 0 || value > largest_knob) {
            refuse(where, "the knob \"" + knob + "\" is " + value.dump() + ", not an integer from 0 to " +
                              std::to_string(largest_knob));
        }
        theta[knob] = value.get<int>();
    }
    for (const char *knob : {"tile_h", "tile_w"}) {
        if (theta.count(knob) == 0 || theta.at(knob) < 1) {
            refuse(where, std::string("the knob \"") + knob + "\" is missing or 0");
        }
    }
    return theta;
}

int channel_block_of(const std::string &backend) {
    return backend == "cuda" ? DISTILE_CUDA_CHANNEL_BLOCK : DISTILE_CPU_CHANNEL_BLOCK;
}

std::string layout_of(const std::string &backend) {
    return backend + "-o" + std::to_string(channel_block_of(backend));
}

Plan read_plan(const std::string &path) {
    const json json = read_json(path);
    const std::string where = "the plan '" + path + "'";
    if (!json.is_object() || !json.contains("distile_plan")) {
        refuse(where, "the member \"distile_plan\" is missing: this is not a plan");
    }
    if (json.at("distile_plan") != plan_version) {
        refuse(where, "it has version " + json.at("distile_plan").dump() + "; this program reads version " +
                          std::to_string(plan_version) + ". Make the plan again with this version of distile");
    }
    Plan plan;
    plan.name = name_member(json, where);
    plan.op = parse_operator(member(json, "operator", json::value_t::object, where), where + ", \"operator\"");
    plan.backend = text_member(json, "backend", where);
    plan.layout = text_member(json, "layout", where);
    if ((plan.backend != "cpu" && plan.backend != "cuda") || plan.layout != layout_of(plan.backend)) {
        refuse(where, "the backend \"" + plan.backend + "\" with the layout \"" + plan.layout +
                          "\" is not known; this program knows \"cpu\" with \"" + layout_of("cpu") +
                          "\" and \"cuda\" with \"" + layout_of("cuda") + "\"");
    }
    plan.target = text_member(json, "target", where);
    try {
        cpu_features(plan.target);
    } catch (const FileError &error) {
        refuse(where, error.what());
    }
    if ((plan.backend == "cuda") != (compute_capability(plan.target) != 0)) {
        refuse(where, "the backend \"" + plan.backend + "\" has a target of another, '" + plan.target + "'");
    }
    const auto &variants = member(json, "variants", json::value_t::array, where);
    if (variants.empty() || variants.size() > 64) {
        refuse(where, "it has " + std::to_string(variants.size()) + " variants; 1 to 64 are allowed");
    }
    std::set<std::string> names;
    for (size_t i = 0; i < variants.size(); i++) {
        const std::string place = where + ", variant " + std::to_string(i);
        plan.variants.push_back(parse_variant(variants[i], place));
        if (!names.insert(plan.variants.back().name).second) {
            refuse(place, "the name \"" + plan.variants.back().name + "\" is used twice");
        }
    }
    if (json.contains("profile")) {
        const auto &profile = member(json, "profile", json::value_t::object, where);
        plan.profiled_device = text_member(profile, "device", where + ", \"profile\"");
        const auto &times = member(profile, "times", json::value_t::array, where + ", \"profile\"");
        for (size_t i = 0; i < times.size(); i++) {
            plan.times.push_back(parse_time(times[i], plan, where + ", \"profile\", time " + std::to_string(i)));
        }
    }
    return plan;
}

json to_json(const std::vector<PlanTime> &times) {
    json rows = json::array();
    for (const PlanTime &time : times) {
        rows.push_back({{"variant", time.variant},
                        {"threads", time.threads},
                        {"tiles", time.tiles},
                        {"us", std::round(time.microseconds * 1000) / 1000}});
    }
    return rows;
}

json to_json(const Plan &plan) {
    json variants = json::array();
    for (const PlanVariant &variant : plan.variants) {
        json row = {{"name", variant.name}, {"theta", variant.theta}};
        if (variant.dense) {
            row["dense"] = true;
        }
        variants.push_back(row);
    }
    json result = {{"distile_plan", plan_version}, {"name", plan.name},     {"operator", to_json(plan.op)},
                   {"backend", plan.backend},      {"layout", plan.layout}, {"target", plan.target},
                   {"variants", variants}};
    if (!plan.times.empty()) {
        result["profile"] = {{"device", plan.profiled_device}, {"times", to_json(plan.times)}};
    }
    return result;
}

std::string cpu_features(const std::string &target) {
    // What each of Halide's features lets the compiler use, and what a target may say beside them.
    const std::map<std::string, std::string> known = {
        {"x86", ""},
        {"64", ""},
        {"linux", ""},
        {"sse41", "sse41"},
        {"avx", "avx"},
        {"avx2", "avx2"},
        {"fma", "fma"},
        {"f16c", "f16c"},
        {"avx512", "avx512f avx512cd"},
        {"avx512_skylake", "avx512f avx512cd avx512bw avx512dq avx512vl"},
        // What a GPU must have is the driver's business: it refuses PTX that it cannot compile.
        {"cuda", ""},
        {"cuda_capability_70", ""},
        {"cuda_capability_80", ""},
    };
    if (target.rfind("x86-64-linux", 0) != 0) {
        throw FileError("the target '" + target + "' does not begin with x86-64-linux");
    }
    std::istringstream words(target);
    std::string word, features;
    std::set<std::string> added;
    while (std::getline(words, word, '-')) {
        const auto found = known.find(word);
        if (found == known.end()) {
            refuse("the target '" + target + "'", "distile cannot check a CPU for its feature '" + word + "'");
        }
        std::istringstream parts(found->second);
        std::string part;
        while (parts >> part) {
            if (added.insert(part).second) {
                features.append(features.empty() ? "" : " ").append(part);
            }
        }
    }
    const std::string capability = "cuda_capability_";
    if (target.find(capability) != target.rfind(capability) || target.back() == '-') {
        refuse("the target '" + target + "'", "it has more than one compute capability, or ends with '-'");
    }
    return features;
}

int compute_capability(const std::string &target) {
    const std::string feature = "cuda_capability_";
    const size_t found = target.find(feature);
    return found == std::string::npos ? 0 : std::stoi(target.substr(found + feature.size()));
}

namespace {

std::set<std::string> words_of(const std::string &text) {
    std::istringstream stream(text);
    return {std::istream_iterator<std::string>(stream), {}};
}

/** Refuses plans that cannot be one chain of PolyKernels. */
void check_chain(const std::vector<Plan> &plans) {
    for (size_t i = 1; i < plans.size(); i++) {
        const Plan &plan = plans[i];
        const std::string where = "the plan '" + plan.name + "'";
        if (plan.backend != "cpu" || plans.front().backend != "cpu") {
            refuse(where, "only plans for CPUs can stand behind one another");
        }
        if (!(plan.op == plans.front().op)) {
            refuse(where, "it is for another operator than '" + plans.front().name + "'");
        }
        for (size_t j = 0; j < i; j++) {
            if (plan.name == plans[j].name) {
                refuse(where, "two plans of one PolyKernel have this name, by which time tables tell them apart");
            }
            const std::set<std::string> has = words_of(cpu_features(plan.target));
            const std::set<std::string> needs = words_of(cpu_features(plans[j].target));
            if (std::includes(has.begin(), has.end(), needs.begin(), needs.end())) {
                refuse(where, "it would never be taken: every CPU that has its features can run '" + plans[j].name +
                                  "', which stands before it. The most demanding plan comes first");
            }
        }
    }
}

/** The PolyKernel of one plan in a chain, with what it refers to. */
void emit_plan(std::ostream &c, const std::vector<Plan> &plans, size_t index, const std::string &symbol) {
    const Plan &plan = plans[index];
    const std::string suffix = "_" + std::to_string(index);
    for (const PlanVariant &variant : plan.variants) {
        const std::string function = function_name(symbol, index, variant.name);
        c << "extern int " << function << "_argv(void **args);\nstatic int run_" << function
          << "(const distile_kernel_call *call) {\n    return distile_call_halide(" << function << "_argv, call);\n}\n";
    }
    c << "\nstatic const distile_variant variants" << suffix << "[] = {\n";
    for (const PlanVariant &variant : plan.variants) {
        c << "    {\"" << variant.name << "\", " << variant.theta.at("tile_h") << ", " << variant.theta.at("tile_w")
          << ", " << (variant.dense ? 1 : 0) << ", " << quoted(plan.layout) << ", run_"
          << function_name(symbol, index, variant.name) << "},\n";
    }
    c << "};\n\n";
    std::vector<distile_time_point> points;
    for (const PlanTime &time : plan.times) {
        for (size_t i = 0; i < plan.variants.size(); i++) {
            if (plan.variants[i].name == time.variant) {
                points.push_back({static_cast<int32_t>(i), time.threads, time.tiles, time.microseconds});
            }
        }
    }
    std::sort(points.begin(), points.end(), [](const distile_time_point &a, const distile_time_point &b) {
        return std::tie(a.variant, a.threads, a.tiles) < std::tie(b.variant, b.threads, b.tiles);
    });
    if (!points.empty()) {
        c << "static const distile_time_point times" << suffix << "[] = {\n" << std::fixed << std::setprecision(3);
        for (const distile_time_point &point : points) {
            c << "    {" << point.variant << ", " << point.threads << ", " << point.tiles << ", " << point.microseconds
              << "},\n";
        }
        c << "};\n\n";
    }
    if (index == 0) {
        c << "extern const distile_polykernel " << symbol << ";\nconst distile_polykernel " << symbol << " = {\n";
    } else {
        c << "static const distile_polykernel polykernel" << suffix << " = {\n";
    }
    const int capability = compute_capability(plan.target);
    c << "    DISTILE_POLYKERNEL_VERSION, " << quoted(plan.name) << ", " << plan.op.schema().kind << ", &op, "
      << plan.op.operands().size() << ", operands,\n    " << (capability != 0 ? "DISTILE_CUDA" : "DISTILE_CPU") << ", "
      << quoted(capability != 0 ? "sm_" + std::to_string(capability) : cpu_features(plan.target)) << ", 0,\n    "
      << plan.variants.size() << ", variants" << suffix << ", " << points.size() << ", "
      << (points.empty() ? "0" : "times" + suffix) << ", "
      << (index + 1 == plans.size() ? "0" : "&polykernel_" + std::to_string(index + 1)) << "};\n\n";
}

}  // namespace

std::string function_name(const std::string &symbol, size_t index, const std::string &variant) {
    return symbol + "_" + std::to_string(index) + "_" + variant;
}

std::string emit_polykernels(const std::vector<Plan> &plans, const std::string &symbol) {
    check_chain(plans);
    std::ostringstream c;
    c << "/* The PolyKernel " << symbol << ": " << plans.front().op.summary() << ". Made from its plans. */\n"
      << "#include <distile/polykernel.h>\n\n";
    const Operator &op = plans.front().op;
    const CStruct op_struct = op.schema().c_struct(op);
    c << "static const " << op_struct.name << " op = {";
    for (const auto &[member, value] : op_struct.members) {
        c << "." << member << " = " << value << ", ";
    }
    c << "};\nstatic const distile_operand operands[] = {\n";
    for (const Operand &operand : op.operands()) {
        c << "    {" << operand.role << ", " << operand.type->enumerator << ", " << operand.channels << "},\n";
    }
    c << "};\n\n";
    // From the last to the first, because each names the one behind it.
    for (size_t i = plans.size(); i-- > 0;) {
        emit_plan(c, plans, i, symbol);
    }
    return c.str();
}

}  // namespace distile
