#include "plans/plan.h"
#include "plans/refuse.h"
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

namespace distile {

namespace {

using nlohmann::json;

constexpr int plan_version = 2, time_table_version = 2;
/** Far above what a schedule can use, and small enough that products of two knobs fit an int. */
constexpr int largest_knob = 4096;

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

void check_layout(const std::string &backend, const std::string &layout, const std::string &where) {
    if (find_layout(get_backend(backend), layout)) {
        return;
    }
    std::string known;
    for (const BackendLayout &other : get_backend(backend).layouts) {
        known.append(known.empty() ? "" : ", ").append(quote(other.name));
    }
    refuse(where, "the backend " + quote(backend) + " has no layout " + quote(layout) + "; it has " + known);
}

/** What code can come from. */
constexpr struct {
    const char *name;
    Language language;
} languages[] = {{"halide", Language::Halide},     {"dot_product", Language::DotProduct},
                 {"nonzeros", Language::Nonzeros}, {"bitmap", Language::Bitmap},
                 {"two_four", Language::TwoFour},  {"tensor_core", Language::TensorCore}};

void parse_code(PlanVariant &variant, const json &code, const std::string &where) {
    std::string known;
    for (const auto &[name, language] : languages) {
        if (code.size() == 1 && code.contains(name)) {
            variant.language = language;
            variant.theta = parse_theta(member(code, name, json::value_t::object, where), where + ", " + quote(name));
            return;
        }
        known.append(known.empty() ? "" : " or ").append(quote(name));
    }
    refuse(where, "\"code\" does not have one member, " + known);
}

json code_to_json(const PlanVariant &variant) {
    for (const auto &[name, language] : languages) {
        if (language == variant.language) {
            return {{name, json(variant.theta)}};
        }
    }
    return {};
}

/** "math", if the operator's type leaves a choice. */
Math parse_math(const json &json, const Operator &op, const std::string &where) {
    if (!json.contains("math")) {
        return Math::Float32;
    }
    const std::string math = text_member(json, "math", where);
    if (op.dtype().dtype != DISTILE_FLOAT32) {
        refuse(where, "it has \"math\", but the type of its operator is " + std::string(op.dtype().name) +
                          ": only float32 operators can be multiplied in another type");
    }
    if (math != "float32" && math != "tf32") {
        refuse(where, "\"math\" is " + quote(math) + ", not \"float32\" or \"tf32\"");
    }
    return math == "tf32" ? Math::TF32 : Math::Float32;
}

/** Whether the code of a variant can be what the plan says: for its target, in its math, with its weights. */
void check_code(const Plan &plan, const PlanVariant &variant, const std::string &where) {
    const Backend &backend = get_backend(plan.backend);
    const std::string why_not = backend.why_no_code(variant.language, plan.op.dtype(), plan.features());
    if (!why_not.empty()) {
        refuse(where, why_not + "; the target is '" + plan.target + "'");
    }
    const bool is_float32 = plan.op.dtype().dtype == DISTILE_FLOAT32;
    const bool on_tensor_cores = variant.language == Language::TensorCore;
    if (is_float32 && on_tensor_cores && plan.math != Math::TF32) {
        refuse(where, "tensor cores multiply float32 in TF32: the plan needs \"math\": \"tf32\"");
    }
    if (!on_tensor_cores && plan.math == Math::TF32) {
        refuse(where, "\"math\" is \"tf32\", but code from Halide multiplies in float32: it needs a plan of its own");
    }
    const BackendLayout *needed = layout_for(backend, variant.language, plan.op.dtype());
    if (!needed || plan.layout_of(variant) != needed->name) {
        refuse(where, "its code does not read weights in the layout " + quote(plan.layout_of(variant)) +
                          (needed ? ", but in " + quote(needed->name) : ""));
    }
}

constexpr std::array<const char *, 3> order_names = {"rows", "morton", "hilbert"};

distile_tile_order parse_order(const json &variant_json, const PlanVariant &variant, const Plan &plan,
                               const std::string &where) {
    const std::string name = text_member(variant_json, "order", where);
    const auto *const found = std::find(order_names.begin(), order_names.end(), name);
    if (found == order_names.end()) {
        refuse(where, "there is no order " + quote(name) + " of tiles; there are rows, morton, hilbert");
    }
    if (plan.backend != cpu_backend().name || variant.dense || plan.op.reads_keys()) {
        refuse(where, "\"order\" is for masked variants on CPUs that read no keys");
    }
    return static_cast<distile_tile_order>(found - order_names.begin());
}

PlanVariant parse_variant(const json &json, const Plan &plan, const std::string &where) {
    check_members(json, {"name", "dense", "layout", "order", "code"}, where);
    PlanVariant variant;
    variant.name = name_member(json, where);
    if (json.contains("dense")) {
        if (!json.at("dense").is_boolean()) {
            refuse(where, "\"dense\" is not true or false");
        }
        variant.dense = json.at("dense").get<bool>();
    }
    if (json.contains("layout")) {
        variant.layout = text_member(json, "layout", where);
        check_layout(plan.backend, variant.layout, where);
    }
    if (json.contains("order")) {
        variant.order = parse_order(json, variant, plan, where);
    }
    parse_code(variant, member(json, "code", nlohmann::json::value_t::object, where), where);
    check_code(plan, variant, where);
    return variant;
}

json to_json(const PlanVariant &variant) {
    json row = {{"name", variant.name}, {"code", code_to_json(variant)}};
    if (variant.dense) {
        row["dense"] = true;
    }
    if (!variant.layout.empty()) {
        row["layout"] = variant.layout;
    }
    if (variant.order != DISTILE_TILES_BY_ROWS) {
        row["order"] = order_name(variant.order);
    }
    return row;
}

PlanTime parse_time(const json &json, const Plan &plan, const std::string &where) {
    const auto number = [&](const char *name, double least, double most) {
        if (!json.is_object() || !json.contains(name) || !json.at(name).is_number() || json.at(name) < least ||
            json.at(name) > most) {
            refuse(where, std::string("\"") + name + "\" is missing or out of range");
        }
        return json.at(name).get<double>();
    };
    check_members(json, {"variant", "threads", "tiles", "us"}, where);
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

/** What the profile of a plan and a time table have in common. */
json measured_times(const Plan &plan) {
    json result = {
        {"plan_hash", plan_hash_text(plan)}, {"device", plan.profiled_device}, {"times", to_json(plan.times)}};
    if (!plan.doubt.empty()) {
        result["doubt"] = plan.doubt;
    }
    return result;
}

/** The times of a plan whose other members were read. */
void parse_profile(Plan &plan, const json &profile, const std::string &where) {
    check_members(profile, {"plan_hash", "device", "doubt", "times"}, where);
    const std::string hash = text_member(profile, "plan_hash", where);
    if (hash != plan_hash_text(plan)) {
        refuse(where, "the times were measured with the code of another plan (its \"plan_hash\" is " + quote(hash) +
                          ", that of this plan is \"" + plan_hash_text(plan) +
                          "\"): measure again with distile profile --into-plan");
    }
    plan.profiled_device = text_member(profile, "device", where);
    plan.doubt = profile.contains("doubt") ? text_member(profile, "doubt", where) : "";
    const auto &times = member(profile, "times", json::value_t::array, where);
    for (size_t i = 0; i < times.size(); i++) {
        plan.times.push_back(parse_time(times[i], plan, where + ", time " + std::to_string(i)));
    }
}

}  // namespace

const char *order_name(distile_tile_order order) {
    return order_names[order];
}

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
        refuse(where, "a schedule must be an object with a value for each knob");
    }
    Theta theta;
    for (const auto &[knob, value] : json.items()) {
        if (!is_name(knob)) {
            refuse(where, "the knob " + quote(knob) + " must be letters, digits and underscores");
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

int Plan::channel_block(const PlanVariant &variant) const {
    return find_layout(get_backend(backend), layout_of(variant))->channel_block;
}

bool Plan::has(Language language) const {
    return std::any_of(variants.begin(), variants.end(),
                       [&](const PlanVariant &variant) { return variant.language == language; });
}

void change_type(Plan &plan, const Operator &op) {
    plan.op = op;
    plan.math = op.dtype().dtype == DISTILE_FLOAT32 && plan.has(Language::TensorCore) ? Math::TF32 : Math::Float32;
    for (PlanVariant &variant : plan.variants) {
        const BackendLayout *layout = layout_for(get_backend(plan.backend), variant.language, op.dtype());
        if (!layout) {
            throw FileError("the plan '" + plan.name + "', variant " + quote(variant.name) +
                            ": there is no such code in " + op.dtype().name);
        }
        variant.layout = layout->name;
        check_code(plan, variant, "the plan '" + plan.name + "', variant " + quote(variant.name));
    }
    plan.layout = plan.variants.front().layout;
    plan.profiled_device.clear();
    plan.doubt.clear();
    plan.times.clear();
}

Plan make_plan(const std::string &name, const Operator &op, const Backend &backend, const std::string &target) {
    Plan plan;
    plan.name = name;
    plan.op = op;
    plan.backend = backend.name;
    plan.layout = backend.layouts.front().name;
    plan.target = target;
    return plan;
}

void add_variants(Plan &plan, const Plan &other, const std::string &prefix) {
    for (PlanVariant variant : other.variants) {
        variant.name = prefix + variant.name;
        variant.layout = other.layout_of(variant);
        plan.variants.push_back(std::move(variant));
    }
    for (PlanTime time : other.times) {
        time.variant = prefix + time.variant;
        plan.times.push_back(std::move(time));
    }
    plan.doubt = plan.doubt.empty() ? other.doubt : plan.doubt;
}

Plan read_plan(const std::string &path, Times times) {
    const json json = read_json(path);
    const std::string where = "the plan '" + path + "'";
    if (!json.is_object() || !json.contains("distile_plan")) {
        refuse(where, "the member \"distile_plan\" is missing: this is not a plan");
    }
    if (json.at("distile_plan") != plan_version) {
        refuse(where, "it has version " + json.at("distile_plan").dump() + "; this program reads version " +
                          std::to_string(plan_version) + ". Make the plan again with this version of distile");
    }
    check_members(json,
                  {"distile_plan", "name", "operator", "backend", "layout", "target", "math", "variants", "profile"},
                  where);
    Plan plan;
    plan.name = name_member(json, where);
    plan.op = parse_operator(member(json, "operator", json::value_t::object, where), where + ", \"operator\"");
    plan.backend = text_member(json, "backend", where);
    plan.layout = text_member(json, "layout", where);
    plan.target = text_member(json, "target", where);
    try {
        const Backend &backend = get_backend(plan.backend), &of_target = backend_of_target(plan.target);
        if (&of_target != &backend) {
            throw FileError("the target '" + plan.target + "' belongs to the backend " + quote(of_target.name) +
                            ", not to " + quote(plan.backend));
        }
        plan.features();
    } catch (const FileError &error) {
        refuse(where, error.what());
    }
    check_layout(plan.backend, plan.layout, where);
    plan.math = parse_math(json, plan.op, where);
    const auto &variants = member(json, "variants", json::value_t::array, where);
    if (variants.empty() || variants.size() > 64) {
        refuse(where, "it has " + std::to_string(variants.size()) + " variants; 1 to 64 are allowed");
    }
    std::set<std::string> names;
    for (size_t i = 0; i < variants.size(); i++) {
        const std::string place = where + ", variant " + std::to_string(i);
        plan.variants.push_back(parse_variant(variants[i], plan, place));
        if (!names.insert(plan.variants.back().name).second) {
            refuse(place, "the name \"" + plan.variants.back().name + "\" is used twice");
        }
    }
    if (json.contains("profile") && times == Times::Keep) {
        parse_profile(plan, member(json, "profile", json::value_t::object, where), where + ", \"profile\"");
    }
    return plan;
}

json to_json(const Plan &plan) {
    json variants = json::array();
    for (const PlanVariant &variant : plan.variants) {
        variants.push_back(to_json(variant));
    }
    json result = {{"distile_plan", plan_version}, {"name", plan.name},     {"operator", to_json(plan.op)},
                   {"backend", plan.backend},      {"layout", plan.layout}, {"target", plan.target},
                   {"variants", variants}};
    if (plan.math == Math::TF32) {
        result["math"] = "tf32";
    }
    if (!plan.times.empty()) {
        result["profile"] = measured_times(plan);
    }
    return result;
}

uint64_t plan_hash(const Plan &plan) {
    json variants = json::array();
    for (const PlanVariant &variant : plan.variants) {
        json row = to_json(variant);
        row["layout"] = plan.layout_of(variant);
        variants.push_back(row);
    }
    json code = {{"generator", plan.op.generator},
                 {"params", to_json(plan.op).at("params")},
                 {"target", plan.target},
                 {"variants", variants}};
    if (plan.math == Math::TF32) {
        code["math"] = "tf32";
    }
    if (plan.has(Language::Nonzeros) || plan.has(Language::Bitmap)) {
        code["weight_zeros"] = plan.op.typical_zeros;
    }
    if (plan.has(Language::TwoFour)) {
        code["weight_pattern"] = to_json(plan.op).at("typical").at("weight_pattern");
    }
    uint64_t hash = 0xcbf29ce484222325;
    for (const char c : code.dump()) {
        hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    }
    return hash;
}

std::string plan_hash_text(const Plan &plan) {
    char text[17] = "";
    std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(plan_hash(plan)));
    return text;
}

json time_table_of(const Plan &plan) {
    json result = measured_times(plan);
    result.update({{"distile_times", time_table_version}, {"kernel", plan.name}});
    return result;
}

}  // namespace distile
