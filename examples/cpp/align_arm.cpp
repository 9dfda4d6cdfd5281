// Joints at 500 Hz and a force sensor at 1 kHz, both sampled at 50 Hz, in plain C++.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <robocache/robocache.hpp>
#include <vector>

using namespace robocache;
using namespace std::chrono_literals;

int main() {
    const std::int64_t num_joints = 1000, num_forces = 2000, num_targets = 100;
    std::vector<float> joints(num_joints * 7), forces(num_forces * 6), aligned(num_targets * 13);
    std::vector<std::int64_t> joint_times(num_joints), force_times(num_forces), targets(num_targets);
    for (std::int64_t i = 0; i < num_joints; ++i) {
        joint_times[i] = i * 2'000'000;
        for (int j = 0; j < 7; ++j) joints[i * 7 + j] = std::sin(0.01F * static_cast<float>(i) + static_cast<float>(j));
    }
    for (std::int64_t i = 0; i < num_forces; ++i) {
        force_times[i] = i * 1'000'000;
        for (int j = 0; j < 6; ++j) forces[i * 6 + j] = static_cast<float>(i);
    }
    for (std::int64_t i = 0; i < num_targets; ++i) targets[i] = i * 20'000'000;

    StreamView streams[2];
    streams[0].values = TensorView(joints.data(), DType::f32, {num_joints, 7});
    streams[0].times = TensorView(joint_times.data(), DType::i64, {num_joints});
    streams[1].values = TensorView(forces.data(), DType::f32, {num_forces, 6});
    streams[1].times = TensorView(force_times.data(), DType::i64, {num_forces});
    streams[1].latency = 3ms;  // the force sensor stamps its samples 3 ms late
    streams[1].max_gap = 10ms;

    Query query;
    query.times = TensorView(targets.data(), DType::i64, {num_targets});
    const TensorView out(aligned.data(), DType::f32, {1, num_targets, 13});
    const AlignOutput outputs[2] = {{out.slice(2, 0, 7), {}, {}}, {out.slice(2, 7, 13), {}, {}}};
    const AlignPlan plan = plan_align(streams, query);  // validates once; may be run again and again
    run(plan, outputs);

    // The force ramp at 20 ms, read 3 ms later, is its sample 23.
    std::printf("robocache %s (%s): joint 0 at 20 ms %.4f, force at 20 ms %.1f\n", version(), cpu_instruction_set(),
                static_cast<double>(aligned[13]), static_cast<double>(aligned[13 + 7]));
    return aligned[13 + 7] == 23.0F && std::abs(aligned[13] - std::sin(0.1F)) < 1e-6F ? 0 : 1;
}
