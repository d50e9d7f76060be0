/** \file
 * What the runners of GPUs share: tensors in arrays on the device, masks, and the call.
 */
#ifndef DISTILE_GPU_RUNNER_H
#define DISTILE_GPU_RUNNER_H

#include "autoscheduler/measure/host_tensor.h"
#include "autoscheduler/measure/trial_runner.h"
#include <distile/distile.hpp>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace distile {

/** `Array` is memory of the device's, with data(), set() and get(). */
template<typename Array> class GpuRunner : public TrialRunner {
public:
    /** Makes an array on the device. */
    using Upload = std::function<std::unique_ptr<Array>(const std::vector<char> &)>;

    /** All must outlive this. */
    GpuRunner(const Context &context, const distile_polykernel &polykernel, const TrialData &data, Upload upload)
        : context_(context), variant_(polykernel.variants[0].name), data_(data), type_(data.op.dtype()),
          output_type_(data.op.output_dtype()), upload_(std::move(upload)),
          input_(upload_(store_as(type_, data.input))),
          output_(upload_(std::vector<char>(data.output_pixels() * data.op.out_channels() * output_type_.bytes))),
          kernel_(make_kernel(context, polykernel)), weights_(data.pack(context, kernel_)) {
        if (!data.residual.empty()) {
            residual_ = upload_(store_as(output_type_, data.residual));
        }
        if (!data.key.empty()) {
            key_ = upload_(store_as(type_, data.key));
        }
        if (!data.value.empty()) {
            value_ = upload_(store_as(type_, data.value));
        }
    }

    size_t add_mask(const std::vector<uint8_t> &bytes) override {
        masks_.push_back(make_mask(context_));
        const std::unique_ptr<Array> on_device = upload_({bytes.begin(), bytes.end()});
        const auto [height, width] = data_.mask_extents();
        check(context_,
              distile_mask_set_bytes(masks_.back().get(), reinterpret_cast<const uint8_t *>(on_device->data()),
                                     data_.batch, height, width, int64_t{height} * width, width));
        // The bytes must stay until the device has read them.
        finish();
        return masks_.size() - 1;
    }
    void run(size_t mask) override {
        launch(mask);
        finish();
    }
    void set_output(const std::vector<float> &values) override {
        output_->set(store_as(output_type_, values));
    }
    std::vector<float> output() override {
        const std::vector<char> stored = output_->get();
        return read_as(output_type_, stored.data(), stored.size() / output_type_.bytes);
    }

protected:
    /** Waits for all work. */
    virtual void finish() = 0;

    void launch(size_t mask) {
        const distile_tensor input =
            make_tensor(type_, input_->data(), data_.batch, data_.input_extents, data_.op.in_channels());
        const distile_tensor output =
            make_tensor(output_type_, output_->data(), data_.batch, data_.output_extents, data_.op.out_channels());
        distile_tensor residual = output;
        residual.data = residual_ ? residual_->data() : nullptr;
        distile_run_args args{};
        args.input = &input;
        args.output = &output;
        args.residual = residual_ ? &residual : nullptr;
        distile_tensor key{}, value{};
        if (key_) {
            key = tokens_of(data_.op, data_.batch, key_->data());
            args.key = &key;
        }
        if (value_) {
            value = tokens_of(data_.op, data_.batch, value_->data());
            args.value = &value;
        }
        args.weights = weights_.get();
        args.mask = masks_[mask].get();
        args.variant = variant_;
        check(context_, distile_run(kernel_.get(), &args));
    }

private:
    const Context &context_;
    const char *variant_;
    const TrialData &data_;
    const DataType &type_, &output_type_;
    Upload upload_;
    std::unique_ptr<Array> input_, output_, residual_, key_, value_;
    Kernel kernel_;
    Weights weights_;
    std::vector<Mask> masks_;
};

}  // namespace distile

#endif
