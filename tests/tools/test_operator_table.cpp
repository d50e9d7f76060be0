// The table of operators: its rows are what their operator files compute, and broken tables are refused.
#include "plans/operator.h"
#include "plans/operator_schema.h"
#include "plans/operator_table.h"
#include "tests/support/catch.h"
#include "tests/support/contains.h"
#include "tests/support/temporary_folder.h"
#include <map>
#include <string>
#include <vector>

using namespace distile;

namespace {

const std::string shipped_table = std::string(DISTILE_MASKS_FOLDER) + "/../operators.csv";

/** The convolution of a row's operator file against the row. */
void check_convolution(const OperatorRow &row, const Operator &op) {
    const distile_conv2d conv = op.schema().convolution(op).conv;
    CHECK(conv.in_channels == row.in_channels);
    CHECK(conv.out_channels == row.out_channels);
    CHECK(conv.kernel_h == row.kernel);
    CHECK(conv.kernel_w == row.kernel);
    CHECK(conv.stride_h == row.stride);
    CHECK(conv.stride_w == row.stride);
    CHECK(conv.groups == (row.category == "depthwise" ? row.in_channels : 1));
}

}  // namespace

TEST_CASE("The rows of the operators are what their files compute", "[table]") {
    const std::map<std::string, std::string> generators = {
        {"conv3k", "masked_conv2d"},    {"conv2s", "masked_conv2d"},
        {"conv1k", "masked_conv2d"},    {"depthwise", "masked_depthwise_conv2d"},
        {"linear", "masked_linear"},    {"transposed", "masked_conv_transpose2d"},
        {"attention", "masked_scores"}, {"upsampled", "masked_upsample_conv2d"},
    };
    const std::vector<OperatorRow> rows = read_operator_table(shipped_table);
    int convolutions = 0;
    for (const OperatorRow &row : rows) {
        CAPTURE(row.id);
        const Operator op = read_operator(operator_file(shipped_table, row));
        CHECK(op.name == row.operator_name);
        if (row.category == "attention") {
            CHECK((op.generator == "masked_scores" || op.generator == "masked_values"));
            CHECK(op.param("heads") == row.heads);
            CHECK(op.param("head_dim") == row.in_channels);
            CHECK(op.typical_width == row.width);
            continue;
        }
        CHECK(op.generator == generators.at(row.category));
        check_convolution(row, op);
        convolutions += row.id <= 26;
    }
    CHECK(convolutions == 26);
}

TEST_CASE("Broken tables of operators are refused with their place", "[table]") {
    const TemporaryFolder folder;
    const std::string head = "# A comment.\nid,category,height,width,in_channels,out_channels,kernel,stride,heads,"
                             "operator\n";
    const auto refused = [&](const std::string &text, const std::vector<std::string> &words) {
        const std::string path = folder.write("table.csv", text);
        try {
            read_operator_table(path);
            FAIL("this table was read: " << text);
        } catch (const FileError &error) {
            CHECK(contains(error.what(), path));
            for (const std::string &word : words) {
                CHECK(contains(error.what(), word));
            }
        }
    };
    CHECK(read_operator_table(folder.write("good.csv", head + "3,conv3k,4,4,8,8,3,1,,conv\n")).size() == 1);
    refused(head + "3,conv3k,4,x,8,8,3,1,,conv\n", {"line 3", "'width'", "\"x\""});
    refused(head + "3,conv3k,4,-4,8,8,3,1,,conv\n", {"'width'"});
    refused(head + "3,conv3k,4,4,8,8,3,1,,\n", {"line 3", "operator file"});
    refused(head + "3,conv3k,4,4,8,8,3,1,,../conv\n", {"operator file"});
    refused(head + "3,conv3k,4,4,8,8,3,1,,conv\n3,conv3k,4,4,8,8,3,1,,conv\n", {"line 4", "twice"});
    refused("id,category\n3,conv3k\n", {"no column 'height'"});
    CHECK_THROWS_AS(read_operator_table(folder.path() + "/none.csv"), FileError);
}
