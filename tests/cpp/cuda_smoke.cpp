// The C++ API on a GPU, as a program that needs no test framework: device memory, a stream of its own, against the CPU.
// Returns 0 if all is right, 1 with a line for each thing that is wrong, 77 where there is no GPU (skipped by ctest).
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "robocache/robocache.hpp"

namespace {

using namespace robocache;

constexpr Device gpu{DeviceType::cuda, 0};
constexpr std::int64_t num_episodes = 5, num_targets = 67;
int num_failures = 0;

void expect(bool condition, const std::string& what) {
    if (condition) return;
    std::printf("wrong: %s\n", what.c_str());
    ++num_failures;
}

void must(cudaError_t error, const char* call) {
    if (error == cudaSuccess) return;
    std::printf("%s: %s\n", call, cudaGetErrorString(error));
    std::exit(1);
}

/// Host memory and its counterpart on the GPU.
template <class T>
class Buffer {
public:
    explicit Buffer(std::size_t count, T value = T{}) : host(count, value) {
        must(cudaMalloc(&device_, count * sizeof(T)), "cudaMalloc");
    }
    ~Buffer() { (void)cudaFree(device_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    void upload(cudaStream_t stream) {
        must(cudaMemcpyAsync(device_, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice, stream), "upload");
    }
    [[nodiscard]] std::vector<T> download(cudaStream_t stream) const {
        std::vector<T> copy(host.size());
        must(cudaMemcpyAsync(copy.data(), device_, copy.size() * sizeof(T), cudaMemcpyDeviceToHost, stream),
             "download");
        must(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
        return copy;
    }
    TensorView view(DType dtype, std::initializer_list<std::int64_t> shape, bool on_gpu) {
        return on_gpu ? TensorView(device_, dtype, shape, gpu) : TensorView(host.data(), dtype, shape);
    }

    std::vector<T> host;

private:
    void* device_ = nullptr;
};

/// One stream of a call: dense float32 rows, a new pace for each of them.
struct Source {
    Source(std::int64_t rows, std::int64_t width, Method method)
        : rows(rows), width(width), method(method), values(num_episodes * rows * width), times(num_episodes * rows) {
        for (std::size_t i = 0; i < values.host.size(); ++i) values.host[i] = std::sin(0.7F * static_cast<float>(i));
        for (std::int64_t e = 0; e < num_episodes; ++e) {
            for (std::int64_t s = 0; s < rows; ++s) times.host[e * rows + s] = 1000 * s + (s * s * 37 + e * 11) % 700;
        }
    }

    StreamView view(bool on_gpu) {
        StreamView stream;
        stream.values = values.view(DType::f32, {num_episodes, rows, width}, on_gpu);
        stream.times = times.view(DType::i64, {num_episodes, rows}, on_gpu);
        stream.method = method;
        stream.max_gap = std::chrono::nanoseconds(1100);
        stream.latency = std::chrono::nanoseconds(3);
        return stream;
    }

    std::int64_t rows;
    std::int64_t width;
    Method method;
    Buffer<float> values;
    Buffer<std::int64_t> times;
};

/// Where the results of a call with two streams go: columns of one array, a mask and an index for each stream.
struct Results {
    explicit Results(std::int64_t width)
        : width(width),
          values(num_episodes * num_targets * width, -1.0F),
          valid(2 * num_episodes * num_targets, 7),
          index(2 * num_episodes * num_targets, -7) {}

    /// The columns [begin, end) of the values, and plane `i` of mask and index.
    AlignOutput output(std::int64_t i, std::int64_t begin, std::int64_t end, bool on_gpu) {
        const auto plane = [&](auto& buffer, DType dtype) {
            TensorView view = buffer.view(dtype, {2, num_episodes, num_targets}, on_gpu).slice(0, i, i + 1);
            view.rank = 2;
            for (int d = 0; d < 2; ++d) {
                view.shape[d] = view.shape[d + 1];
                view.strides[d] = view.strides[d + 1];
            }
            return view;
        };
        return {values.view(DType::f32, {num_episodes, num_targets, width}, on_gpu).slice(2, begin, end),
                plane(valid, DType::boolean), plane(index, DType::i64)};
    }

    std::int64_t width;
    Buffer<float> values;
    Buffer<std::uint8_t> valid;
    Buffer<std::int64_t> index;
};

template <class T>
void expect_same(const Buffer<T>& buffer, cudaStream_t stream, const std::string& what) {
    const std::vector<T> got = buffer.download(stream);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < got.size(); ++i) wrong += std::memcmp(&got[i], &buffer.host[i], sizeof(T)) != 0;
    expect(wrong == 0,
           what + ": " + std::to_string(wrong) + " of " + std::to_string(got.size()) + " differ from the CPU");
}

void two_streams_with_masks_and_indices(Method first, Method second, cudaStream_t stream) {
    Source a(50, 7, first);
    Source b(400, 4, second);
    Buffer<std::int64_t> targets(num_episodes * num_targets);
    for (std::size_t i = 0; i < targets.host.size(); ++i) {
        targets.host[i] = static_cast<std::int64_t>(i * 7919 % 53000) - 1500;  // before, inside, between, behind
    }
    targets.host[3] = a.times.host[8] - 3;   // exact, once the latency is added
    Results results(a.width + b.width + 1);  // the last column belongs to nobody
    for (auto* buffer : {&a.values, &b.values, &results.values}) buffer->upload(stream);
    for (auto* buffer : {&a.times, &b.times, &targets, &results.index}) buffer->upload(stream);
    results.valid.upload(stream);
    for (const bool on_gpu : {true, false}) {
        const StreamView streams[2] = {a.view(on_gpu), b.view(on_gpu)};
        const AlignOutput outputs[2] = {results.output(0, 0, a.width, on_gpu),
                                        results.output(1, a.width, a.width + b.width, on_gpu)};
        Query query;
        query.times = targets.view(DType::i64, {num_episodes, num_targets}, on_gpu);
        run(plan_align(streams, query, {.check = false}), outputs, {}, on_gpu ? CudaQueue{stream} : CudaQueue{});
    }
    const std::string names = std::string(method_name(first)) + " and " + std::string(method_name(second));
    expect_same(results.values, stream, names + ", values");
    expect_same(results.valid, stream, names + ", valid");
    expect_same(results.index, stream, names + ", index");
    expect(results.values.host[results.width - 1] == -1.0F, "the column of nobody was written");
    std::size_t num_valid = 0;
    for (const std::uint8_t v : results.valid.host) num_valid += v == 1;
    expect(num_valid > 0 && num_valid < results.valid.host.size(), "the targets ask for valid and for invalid results");
}

void bad_times_are_refused_before_anything_is_written(cudaStream_t stream) {
    Source a(50, 7, Method::linear);
    a.times.host[20] = -1;
    Buffer<std::int64_t> targets(num_targets);
    Buffer<float> out(num_episodes * num_targets * a.width, -1.0F);
    for (auto* buffer : {&a.values, &out}) buffer->upload(stream);
    for (auto* buffer : {&a.times, &targets}) buffer->upload(stream);
    const StreamView streams[1] = {a.view(true)};
    const AlignOutput outputs[1] = {{out.view(DType::f32, {num_episodes, num_targets, a.width}, true), {}, {}}};
    Query query;
    query.times = targets.view(DType::i64, {num_targets}, true);
    try {
        run(plan_align(streams, query), outputs, {}, CudaQueue{stream});
        expect(false, "times that decrease were not refused");
    } catch (const InvalidArgument& error) {
        expect(std::strstr(error.what(), "must not decrease inside an episode, got -1") != nullptr, error.what());
    }
    expect_same(out, stream, "an output that must not be written");
}

}  // namespace

int main() {
    const CudaStatus status = cuda_status();
    if (!status.available) {
        const char* required = std::getenv("ROBOCACHE_REQUIRE_CUDA");
        std::printf("no GPU: %s\n", status.reason.c_str());
        return required != nullptr && std::strcmp(required, "1") == 0 ? 1 : 77;
    }
    cudaStream_t stream = nullptr;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    try {
        two_streams_with_masks_and_indices(Method::linear, Method::previous, stream);
        two_streams_with_masks_and_indices(Method::previous, Method::linear, stream);
        two_streams_with_masks_and_indices(Method::nearest, Method::cubic, stream);
        bad_times_are_refused_before_anything_is_written(stream);
    } catch (const Error& error) {
        expect(false, error.what());
    }
    must(cudaStreamDestroy(stream), "cudaStreamDestroy");
    std::printf("%s on %s\n", num_failures == 0 ? "all right" : "failed", status.devices[0].c_str());
    return num_failures == 0 ? 0 : 1;
}
