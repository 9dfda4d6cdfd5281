// A control loop at 50 Hz: joints at 500 Hz and force at 1 kHz arrive, and each tick reads both at the moments of a
// policy.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <robocache/robocache.hpp>

using namespace robocache;
using namespace std::chrono_literals;

/// The last rows of one sensor, in memory that never moves: a plan keeps pointing to it.
template <std::int64_t num_rows, std::int64_t num_channels>
struct History {
    std::array<float, num_rows * num_channels> rows{};
    std::array<std::int64_t, num_rows> times{};

    /// Before the first row all times are equal; align takes the last row of a time, so the others do not count.
    void start(std::int64_t t_ns) { times.fill(t_ns); }

    void push(std::int64_t t_ns, const float* row) {
        std::copy(rows.begin() + num_channels, rows.end(), rows.begin());
        std::copy(times.begin() + 1, times.end(), times.begin());
        std::copy(row, row + num_channels, rows.end() - num_channels);
        times.back() = t_ns;
    }

    [[nodiscard]] StreamView view() {
        StreamView stream;
        stream.values = TensorView(rows.data(), DType::f32, {num_rows, num_channels});
        stream.times = TensorView(times.data(), DType::i64, {num_rows});
        stream.method = Method::previous;  // only what has arrived
        return stream;
    }
};

int main() {
    History<128, 7> joints;
    History<256, 6> force;
    joints.start(0);
    force.start(0);

    std::int64_t now_ns = 0;
    const std::array<std::int64_t, 3> deltas = {-100'000'000, -50'000'000, 0};  // as in training
    std::array<float, 3 * 13> observation{};

    StreamView streams[2] = {joints.view(), force.view()};
    streams[1].latency = 2ms;  // the force sensor stamps its rows 2 ms late
    Query query;
    query.anchor = TensorView(&now_ns, DType::i64, {1});
    query.deltas = TensorView(deltas.data(), DType::i64, {3});
    const AlignPlan plan = plan_align(streams, query);  // once, before the loop
    const TensorView out(observation.data(), DType::f32, {1, 3, 13});
    const AlignOutput outputs[2] = {{out.slice(2, 0, 7), {}, {}}, {out.slice(2, 7, 13), {}, {}}};

    for (int tick = 1; tick <= 100; ++tick) {
        for (int i = 0; i < 10; ++i) {  // in place of your drivers: the rows of the last 20 ms
            const std::int64_t t_ns = (tick - 1) * 20'000'000LL + (i + 1) * 2'000'000LL;
            std::array<float, 7> row{};
            row.fill(static_cast<float>(t_ns) * 1e-9F);
            joints.push(t_ns, row.data());
        }
        for (int i = 0; i < 20; ++i) {
            const std::int64_t t_ns = (tick - 1) * 20'000'000LL + (i + 1) * 1'000'000LL;
            std::array<float, 6> row{};
            row.fill(static_cast<float>(t_ns) * 1e-9F);
            force.push(t_ns, row.data());
        }
        now_ns = tick * 20'000'000LL;
        run(plan, outputs);  // into `observation`; nothing is planned or validated twice
        // policy(observation) and the command follow here
    }

    // At 2 s: joints of 1.9, 1.95 and 2 s. Force is read 2 ms later, except that nothing newer than 2 s has arrived.
    const float expected[3][2] = {{1.9F, 1.902F}, {1.95F, 1.952F}, {2.0F, 2.0F}};
    bool right = true;
    for (std::size_t m = 0; m < 3; ++m) {
        right = right && std::abs(observation[m * 13] - expected[m][0]) < 1e-5F;
        right = right && std::abs(observation[m * 13 + 7] - expected[m][1]) < 1e-5F;
    }
    std::printf("observation at %.2f s: joints %.3f %.3f %.3f, force %.3f %.3f %.3f\n",
                static_cast<double>(now_ns) / 1e9, static_cast<double>(observation[0]),
                static_cast<double>(observation[13]), static_cast<double>(observation[26]),
                static_cast<double>(observation[7]), static_cast<double>(observation[20]),
                static_cast<double>(observation[33]));
    return right ? 0 : 1;
}
