/** \file
 * The CPU as a device.
 */
#ifndef DISTILE_CPU_DEVICE_H
#define DISTILE_CPU_DEVICE_H

#include "runtime/base/context.h"

namespace distile {

class CpuStageRunner;
struct PixelProducts;
struct QuantizedProducts;

class CpuDevice : public Device {
public:
    explicit CpuDevice(distile_context &given);
    ~CpuDevice() override;
    CpuDevice(const CpuDevice &) = delete;
    CpuDevice &operator=(const CpuDevice &) = delete;

    distile_device kind() const override {
        return DISTILE_CPU;
    }
    const Exchange *exchange() const override;
    int32_t threads() const override {
        return context.options.threads;
    }
    const void *memory_space() const override;

    std::unique_ptr<distile_mask> make_mask() override;
    std::unique_ptr<distile_planner> make_planner(const PlannerSettings &settings) override;
    std::shared_ptr<const void> upload(const void *from, size_t bytes) override;
    std::shared_ptr<const void> make_filled(size_t bytes, const std::function<void(void *)> &fill) override;

    distile_status check_memory(const char *, const distile_tensor &, const char *) const override {
        return DISTILE_OK;
    }
    ScratchMemory take_scratch(size_t bytes) override;
    void update_pixels(distile_mask *mask, const distile_tensor &output, const distile_tensor *from,
                       bool zero) override;
    void write(const Zeros &zeros) override;
    void upsample_nearest(const distile_tensor &input, const distile_tensor &output, distile_mask &mask,
                          int32_t scale_h, int32_t scale_w, bool zero) override;
    void normalize(const Normalization &normalization) override;
    void pool(const Pooling &pooling) override;
    void pool_globally(const GlobalPooling &pooling) override;
    void combine(const TensorCombination &combination) override;
    void find_statistics(const GroupStatistics &statistics) override;
    void normalize_groups(const GroupNormalization &normalization) override;
    void pack(const distile_tensor &tensor, distile_mask &mask, const distile_tensor &packed) override;
    void unpack(const distile_tensor &packed, distile_mask &mask, const distile_tensor &tensor, bool zero) override;
    void convert_layout(const distile_nchw &planes, const distile_tensor &tensor, bool to_planes) override;

    const StageTarget *stage_target() const override;
    void run_stage(const Stage &stage, StageTrace *trace) override;
    std::string missing_features(const distile_polykernel &polykernel) const override;
    int64_t most_virtual_pixels() const override;
    std::unique_ptr<LoadedCode> load(const distile_kernel &) override {
        return nullptr;
    }
    RunResult run(LoadedCode *, const VariantCalls &calls, const Zeros *zeros) override;

    /** The code for products of listed pixels. */
    const PixelProducts &products();
    /** The code for quantized convolutions. */
    const QuantizedProducts &quantized_products();

private:
    // Null until somebody asks.
    const PixelProducts *products_ = nullptr;
    const QuantizedProducts *quantized_products_ = nullptr;
    /** Null until a stage runs. */
    std::unique_ptr<CpuStageRunner> stages_;
};

}  // namespace distile

#endif
