#include "onnxruntime/tensors.h"
#include "onnxruntime/wanted.h"
#include "onnxruntime/weighted.h"

namespace distile::ort {

namespace {

enum AttentionInput : size_t { query, key, value, row_mask, key_mask, kept_output };

class Attention : public LeasingKernel {
public:
    Attention(const Setup &setup) : LeasingKernel(setup), scale_(setup.node.number("scale", 0)) {
        distile_attention attention{};
        attention.heads = number(setup.node.integer("num_heads", 0), "num_heads");
        attention.head_dim = number(setup.node.integer("head_dim", 0), "head_dim");
        attention.causal = setup.node.integer("is_causal", 0) != 0 ? 1 : 0;
        Wanted wanted(bindings::OperatorKey(setup.device, setup.type, attention));
        polykernel_ = wanted.get();
        if (!polykernel_) {
            fail("no PolyKernel computes attention of " + std::to_string(attention.heads) + " heads of " +
                 std::to_string(attention.head_dim) + " channels" + (attention.causal ? ", causal," : "") +
                 " of node '" + setup.node.name() +
                 (wanted.may_come()
                      ? "': it is being built, so try again later"
                      : "': build one with 'python -m distile.onnx convert --build', or leave the node as it was"));
        }
    }

    void compute(const Call &call) override {
        const Lease lease = lease_for(call);
        const Tensor queries = call.input(query), keys = call.input(key), values = call.input(value);
        const distile_tensor rows = read(lease, queries, ImageLayout::tokens, 0);
        const distile_tensor key_rows = read(lease, keys, ImageLayout::tokens, 0);
        const distile_tensor value_rows = read(lease, values, ImageLayout::tokens, 0);
        const Output output(call, lease, queries, ImageLayout::tokens, 1, rows.width, rows.channels,
                            call.optional(kept_output));
        const auto key_bytes = call.optional(key_mask);
        distile_run_args args{};
        args.input = &rows;
        args.key = &key_rows;
        args.value = &value_rows;
        args.output = &output.view();
        args.mask = mask_of(lease, call.input(row_mask), ImageLayout::tokens, rows.batch);
        args.key_mask = key_bytes ? mask_of(lease, *key_bytes, ImageLayout::tokens, key_rows.batch, 1) : nullptr;
        args.scale = scale_;
        args.inactive = output.inactive();
        check(distile_run(lease->kernel(*polykernel_), &args), lease->context());
        output.finish(args.mask);
    }

private:
    float scale_;
    const distile_polykernel *polykernel_;
};

}  // namespace

std::vector<OperatorType> attention_types() {
    return {{"MaskedAttention",
             {{}, {}, {}, {boolean}, {boolean, optional}, {any_type, optional}},
             {any_type},
             make_kernel<Attention>}};
}

}  // namespace distile::ort
