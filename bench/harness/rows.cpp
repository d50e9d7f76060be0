#include "bench/harness/rows.h"
#include <algorithm>
#include <fmt/core.h>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <stdexcept>
#include <utility>

namespace distile::bench {

namespace {

using nlohmann::json;

/** A mask, and its density as row names spell it. */
struct NamedMask {
    MaskSpec spec;
    std::string density;
};

/** One of two words of the file as a bool; anything else is an error. */
bool is_first(const std::string &word, const char *first, const char *second) {
    if (word != first && word != second) {
        throw std::runtime_error(fmt::format("'{}' is neither '{}' nor '{}'", word, first, second));
    }
    return word == first;
}

State parse_state(const std::string &word) {
    return word == "first" ? State::First : is_first(word, "cold", "hot") ? State::Cold : State::Hot;
}

class Reader {
public:
    Reader(const json &file, const std::vector<OwnOperator> &own) : file_(file), own_(own) {
        if (file.at("distile_bench_rows") != 1) {
            throw std::runtime_error("'distile_bench_rows' must be 1, the version that this program reads");
        }
    }

    std::vector<Row> read() {
        for (const json &group : groups("type_rows")) {
            read_types(group);
        }
        for (const json &group : file_.at("convolutions")) {
            read_convolutions(group);
        }
        for (const json &group : groups("choice_rows")) {
            read_choices(group);
        }
        for (const json &group : groups("opencl_rows")) {
            for_each_operator(group, [&](const OperatorSpec &op, int32_t batch, const NamedMask &mask) {
                add(fmt::format("opencl/{}/{}/{}/n{}", op.name, mask.spec.name, mask.density, batch),
                    OpenClRow{op, batch, mask.spec, group.at("goal_ratio")});
            });
        }
        for (const json &group : groups("bandwidth_rows")) {
            for_each_operator(group, [&](const OperatorSpec &op, int32_t batch, const NamedMask &mask) {
                add(fmt::format("bandwidth/{}/{}/{}/n{}", op.name, mask.spec.name, mask.density, batch),
                    BandwidthRow{op, batch, mask.spec, group.value("goal_share", 0.0)});
            });
        }
        for (const json &group : groups("mask_rows")) {
            const int32_t height = group.at("height"), width = group.at("width");
            for (const NamedMask &mask : masks(group)) {
                add(fmt::format("mask/{}x{}/{}/{}/pack+counts+list", height, width, mask.spec.name, mask.density),
                    MaskRow{height, width, mask.spec, group.at("goal_us")});
            }
        }
        for (const json &group : groups("select_rows")) {
            for (const std::string op : group.at("operators")) {
                add("select/" + op, SelectRow{find_operator(op), group.at("goal_us")});
            }
        }
        for (const json &group : groups("pool_rows")) {
            add(fmt::format("pool/{}x{}us", group.at("tasks").dump(), group.at("task_us").dump()),
                PoolRow{group.at("tasks"), group.at("task_us")});
        }
        for (const json &group : groups("dispatch_rows")) {
            for (const std::string op : group.at("operators")) {
                add("dispatch/" + op, DispatchRow{find_operator(op)});
            }
        }
        for (const json &group : groups("algebra_rows")) {
            read_algebra(group);
        }
        for (const json &group : groups("difference_rows")) {
            for (const json &shape : group.at("shapes")) {
                const int32_t height = shape.at(0), width = shape.at(1), channels = shape.at(2);
                add(fmt::format("difference/{}x{}x{}", height, width, channels),
                    DifferenceRow{height, width, channels, group.at("goal_ratio")});
            }
        }
        for (const json &group : groups("layout_rows")) {
            for (const json &shape : group.at("shapes")) {
                const int32_t batch = shape.at(0), channels = shape.at(1), height = shape.at(2), width = shape.at(3);
                for (const bool from : {true, false}) {
                    add(fmt::format("layout/{}/{}x{}x{}x{}", from ? "from_nchw" : "to_nchw", batch, channels, height,
                                    width),
                        LayoutRow{from, batch, channels, height, width});
                }
            }
        }
        for (const json &group : groups("token_rows")) {
            read_tokens(group);
        }
        for (const json &group : groups("planner_rows")) {
            for (const std::string op : group.at("operators")) {
                for (const NamedMask &mask : masks(group)) {
                    const int32_t layers = group.at("layers"), batch = group.value("batch", 1);
                    add(fmt::format("planner/{}x{}/{}/{}{}", layers, op, mask.spec.name, mask.density,
                                    batch == 1 ? "" : fmt::format("/n{}", batch)),
                        PlannerRow{find_operator(op), layers, mask.spec, batch});
                }
            }
        }
        read_own();
        return std::move(rows_);
    }

private:
    template<typename What> void add(const std::string &name, What what, const std::string &version = "") {
        if (!names_.insert(name).second) {
            throw std::runtime_error("the row '" + name + "' comes twice");
        }
        rows_.push_back({name, std::move(what), version});
    }

    /** The groups of rows of a kind. A file may have none. */
    json groups(const char *kind) const {
        return file_.value(kind, json::array());
    }

    OperatorSpec find_operator(const std::string &name) const {
        const json &op = file_.at("operators").at(name);
        // Some operators are measured in narrow types alone.
        return {name, op.at("id"), op.value("polykernel", "")};
    }

    /** An operator in a type. TF32 is float32 for a PolyKernel: the context chooses among its code. `plans` names other
     * PolyKernels of the operator, by type; "": the usual ones. */
    OperatorSpec in_type(const OperatorSpec &op, const Numerics &numerics, const std::string &plans = "") const {
        const json &known = file_.at("operators").at(op.name);
        if (!plans.empty()) {
            return {op.name, op.id, known.at(plans).at(numerics.name)};
        }
        if (numerics.dtype == DISTILE_FLOAT32) {
            return op;
        }
        return {op.name, op.id, known.at("polykernels").at(numerics.name)};
    }

    /** The version of code that --objects brought; "" for other code. */
    std::string version_of(const OperatorSpec &op) const {
        for (const OwnOperator &own : own_) {
            for (const std::string &way : own.ways) {
                if (op.polykernel == own.name + "." + way) {
                    return own.version;
                }
            }
        }
        return "";
    }

    std::vector<NamedMask> masks(const json &group) const {
        const uint64_t seed = file_.at("seed");
        std::vector<NamedMask> found;
        const auto add_mask = [&](const std::string &name, double density, int32_t zoom_out, std::string spelling) {
            const MaskSpec spec{name, density, seed, zoom_out};
            found.push_back({spec, std::move(spelling)});
        };
        for (const json &mask : file_.at("mask_sets").at(group.at("masks").get<std::string>())) {
            const std::string name = mask.at("mask");
            if (mask.contains("zoom_out")) {
                for (const json &times : mask.at("zoom_out")) {
                    add_mask(name, 0, times, "out" + times.dump());
                }
                continue;
            }
            if (!mask.contains("densities")) {
                add_mask(name, 0, 1, "real");
                continue;
            }
            for (const json &density : mask.at("densities")) {
                // The spelling of the file, so that names stay stable.
                add_mask(name, density, 1, density.dump());
            }
        }
        return found;
    }

    void read_tokens(const json &group) {
        for (const json &shape : group.at("shapes")) {
            const int32_t batch = shape.at(0), tokens = shape.at(1), channels = shape.at(2);
            for (const NamedMask &mask : masks(group)) {
                for (const std::string function : group.at("functions")) {
                    add(fmt::format("token/{}x{}x{}/{}/{}/{}", batch, tokens, channels, mask.spec.name, mask.density,
                                    function),
                        TokenRow{function, batch, tokens, channels, mask.spec});
                }
            }
        }
    }

    void read_algebra(const json &group) {
        const int32_t height = group.at("height"), width = group.at("width");
        for (const NamedMask &mask : masks(group)) {
            for (const std::string function : group.at("functions")) {
                add(fmt::format("algebra/{}x{}/{}/{}/{}", height, width, mask.spec.name, mask.density, function),
                    AlgebraRow{function, height, width, mask.spec, group.at("goal_us")});
            }
        }
    }

    /** A group without operators is of those that no other group names. */
    void read_own() {
        const json all = groups("own_rows");
        std::set<std::string> named;
        for (const json &group : all) {
            for (const std::string op : group.value("operators", json::array())) {
                named.insert(op);
            }
        }
        for (const json &group : all) {
            const json wanted = group.value("operators", json());
            for (const OwnOperator &op : own_) {
                const bool is_wanted = wanted.is_null()
                                           ? named.count(op.name) == 0
                                           : std::find(wanted.begin(), wanted.end(), op.name) != wanted.end();
                if (is_wanted) {
                    read_own(group, op);
                }
            }
        }
    }

    void read_own(const json &group, const OwnOperator &op) {
        std::set<bool> layouts;
        for (const std::string layout : group.at("layouts")) {
            // Without padding there is no border.
            layouts.insert(is_first(layout, "bordered", "plain") && op.padded);
        }
        for (const bool bordered : layouts) {
            for (const NamedMask &mask : masks(group)) {
                add(fmt::format("own/{}/{}/{}/{}", op.name, mask.spec.name, mask.density,
                                bordered ? "bordered" : "plain"),
                    OwnRow{op.name, mask.spec, bordered, group.at("peer"), group.value("in_means", true)}, op.version);
            }
        }
    }

    template<typename Body> void for_each_operator(const json &group, const Body &body) const {
        for (const std::string op : group.at("operators")) {
            for (const int32_t batch : group.at("batches")) {
                for (const NamedMask &mask : masks(group)) {
                    body(find_operator(op), batch, mask);
                }
            }
        }
    }

    void read_convolutions(const json &group) {
        for_each_operator(group, [&](const OperatorSpec &op, int32_t batch, const NamedMask &mask) {
            for (const std::string mode : group.at("modes")) {
                for (const std::string layout : group.at("layouts")) {
                    add_convolutions(group, op, batch, mask, mode, layout);
                }
            }
        });
    }

    void read_types(const json &group) {
        for_each_operator(group, [&](const OperatorSpec &op, int32_t batch, const NamedMask &mask) {
            for (const std::string type : group.at("types")) {
                add_with_features(
                    group, fmt::format("type/{}/{}/{}/{}/n{}", type, op.name, mask.spec.name, mask.density, batch),
                    TypeRow{op, type, batch, mask.spec, group.at("goal_ratio"), {}});
            }
        });
    }

    void read_choices(const json &group) {
        for_each_operator(group, [&](const OperatorSpec &op, int32_t batch, const NamedMask &mask) {
            for (const std::string dtype : group.at("dtypes")) {
                const Numerics &numerics = find_numerics(dtype);
                for (const std::string chooser : group.at("choosers")) {
                    const bool linked = is_first(chooser, "linked", "device");
                    add(fmt::format("choice/{}/{}/{}/{}/n{}/{}", chooser, op.name, mask.spec.name, mask.density, batch,
                                    dtype),
                        ChoiceRow{in_type(op, numerics), batch, mask.spec, &numerics,
                                  linked ? Chooser::Linked : Chooser::Device,
                                  group.at(linked ? "goal_loss" : "goal_us")});
                }
            }
        });
    }

    void add_convolutions(const json &group, const OperatorSpec &op, int32_t batch, const NamedMask &mask,
                          const std::string &mode, const std::string &layout) {
        const json dtypes = group.value("dtypes", json::array({"float32"}));
        const std::string plans = group.value("plans", "");
        for (const std::string state : group.at("states")) {
            for (const std::string peer : group.at("peers")) {
                for (const std::string dtype : dtypes) {
                    const bool linked = group.value("linked", false);
                    const Numerics &numerics = find_numerics(dtype);
                    const std::string name = fmt::format(
                        "{}/{}/{}/n{}/{}/{}/{}{}{}{}{}", op.name, mask.spec.name, mask.density, batch, mode, layout,
                        peer, numerics.is_strict() ? "" : "/" + dtype, state == "hot" ? "" : "/" + state,
                        linked ? "/linked" : "", plans.empty() ? "" : "/" + plans);
                    const ConvolutionRow row{in_type(op, numerics, plans),
                                             batch,
                                             mask.spec,
                                             is_first(mode, "zero", "keep"),
                                             is_first(layout, "bordered", "plain"),
                                             parse_state(state),
                                             linked,
                                             peer,
                                             {},
                                             &numerics};
                    if (group.contains("cpu_features") && peer != "dense") {
                        throw std::runtime_error(
                            fmt::format("the row '{}' limits CPU features, but its peer '{}' would use all of them; "
                                        "only the peer 'dense' keeps to a limit",
                                        name, peer));
                    }
                    add_with_features(group, name, row);
                }
            }
        }
    }

    /** The row once for each set of CPU features of its group, or unchanged if the group limits none. */
    template<typename What> void add_with_features(const json &group, const std::string &name, What row) {
        if (!group.contains("cpu_features")) {
            add(name, row, version_of(row.op));
            return;
        }
        for (const std::string limit : group.at("cpu_features")) {
            row.limit = CpuFeatures{limit, file_.at("cpu_features").at(limit)};
            add(fmt::format("{}/{}", name, limit), row);
        }
    }

    const json &file_;
    const std::vector<OwnOperator> &own_;
    std::vector<Row> rows_;
    std::set<std::string> names_;
};

std::vector<Row> read_all_rows(const std::string &path, const std::vector<OwnOperator> &own) {
    std::ifstream stream(path);
    if (!stream) {
        throw std::runtime_error("the rows '" + path + "' cannot be opened; give another file with --rows");
    }
    try {
        const json file = json::parse(stream);
        return Reader(file, own).read();
    } catch (const std::exception &error) {
        throw std::runtime_error("the rows '" + path + "' cannot be read: " + error.what());
    }
}

/** What rows have in common that share tensors and peers: operator, code, batch, CPU features and type. */
std::string shared_by(const Row &row) {
    const auto name = [](const OperatorSpec &op, int32_t batch, const std::optional<CpuFeatures> &limit,
                         const std::string &type) {
        return fmt::format("{}/{}/n{}/{}/{}", op.name, op.polykernel, batch, limit ? limit->name : "", type);
    };
    if (const auto *convolution = std::get_if<ConvolutionRow>(&row.what)) {
        return name(convolution->op, convolution->batch, convolution->limit, convolution->numerics->name);
    }
    if (const auto *choice = std::get_if<ChoiceRow>(&row.what)) {
        return name(choice->op, choice->batch, {}, choice->numerics->name);
    }
    if (const auto *bandwidth = std::get_if<BandwidthRow>(&row.what)) {
        return name(bandwidth->op, bandwidth->batch, {}, "float32");
    }
    if (const auto *type = std::get_if<TypeRow>(&row.what)) {
        return name(type->op, type->batch, type->limit, type->type);
    }
    if (const auto *opencl = std::get_if<OpenClRow>(&row.what)) {
        return name(opencl->op, opencl->batch, {}, "float32");
    }
    if (const auto *own = std::get_if<OwnRow>(&row.what)) {
        return "own/" + own->op;
    }
    return row.name;
}

/** Groups rows that share tensors and peers, in the order of the first of each group. */
void group(std::vector<Row> &rows) {
    std::map<std::string, size_t> first;
    for (const Row &row : rows) {
        first.try_emplace(shared_by(row), first.size());
    }
    std::stable_sort(rows.begin(), rows.end(),
                     [&](const Row &a, const Row &b) { return first.at(shared_by(a)) < first.at(shared_by(b)); });
}

std::regex parse_filter(const std::string &filter) {
    try {
        return std::regex(filter);
    } catch (const std::regex_error &error) {
        throw std::runtime_error(fmt::format("--filter '{}' is no regular expression: {}", filter, error.what()));
    }
}

}  // namespace

std::vector<Row> read_rows(const std::string &path, const std::string &filter, const std::vector<OwnOperator> &own) {
    const std::regex wanted = parse_filter(filter);
    std::vector<Row> chosen;
    for (Row &row : read_all_rows(path, own)) {
        if (std::regex_search(row.name, wanted)) {
            chosen.push_back(std::move(row));
        }
    }
    if (chosen.empty()) {
        throw std::runtime_error(fmt::format("--filter '{}' matches no row; --list shows them all", filter));
    }
    group(chosen);
    return chosen;
}

}  // namespace distile::bench
