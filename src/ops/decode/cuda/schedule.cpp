// Makes the schedule of a call, on the host.
#include "ops/decode/cuda/schedule.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <string>

#include "ops/decode/contract/plan.hpp"
#include "robocache/errors.hpp"

namespace robocache::decode_detail {
namespace {

/// How many different Huffman tables a set has.
std::uint32_t count_tables(const TableSet& set, int num_components) {
    std::array<std::uint32_t, 2 * max_components> positions{};
    std::size_t count = 0;
    for (int c = 0; c < num_components; ++c) {
        for (const std::uint32_t at : {set.dc[c], set.ac[c]}) {
            if (std::find(positions.begin(), positions.begin() + static_cast<std::ptrdiff_t>(count), at) ==
                positions.begin() + static_cast<std::ptrdiff_t>(count)) {
                positions[count++] = at;
            }
        }
    }
    return static_cast<std::uint32_t>(count);
}

/// Blocks of 64 bytes that the planes of a picture take.
std::uint64_t count_blocks(const PictureRecord& record, const Box& region, int num_stored) {
    std::uint64_t per_mcu = 0;
    for (int c = 0; c < num_stored; ++c) per_mcu += static_cast<std::uint64_t>(record.h[c] * record.v[c]);
    return per_mcu * static_cast<std::uint64_t>(region.x1 - region.x0) *
           static_cast<std::uint64_t>(region.y1 - region.y0);
}

void choose_tile(const Style& style, DeviceJob& job, CudaSchedule& schedule) {
    const Box box = job.crop();
    const ResampleAxis x = resample_axis(box.x1 - box.x0, style.out_width, style.is_area);
    const ResampleAxis y = resample_axis(box.y1 - box.y0, style.out_height, style.is_area);
    std::uint64_t num_tiles = 0;
    for (const TileSize& size : tile_sizes) {
        // A picture this much smaller could overflow the sizes below; it goes without tiles.
        if (x.scale > 4096 || y.scale > 4096) break;
        const TileLayout layout = tile_layout(x, y, size.width, size.height);
        if (layout.end > tile_shared_bytes) continue;
        job.tile_width = static_cast<std::uint16_t>(size.width);
        job.tile_height = static_cast<std::uint16_t>(size.height);
        num_tiles = static_cast<std::uint64_t>(ceil_div(style.out_width, size.width)) *
                    static_cast<std::uint64_t>(ceil_div(style.out_height, size.height));
        schedule.tile_bytes = std::max(schedule.tile_bytes, layout.end);
        break;
    }
    if (job.tile_width == 0) {
        schedule.has_untiled = true;
        const std::uint64_t num_pixels =
            static_cast<std::uint64_t>(style.out_width) * static_cast<std::uint64_t>(style.out_height);
        num_tiles = (num_pixels + pixel_threads - 1) / pixel_threads;
    }
    if (schedule.num_tiles + num_tiles > std::numeric_limits<std::int32_t>::max()) {
        throw Unsupported(
            "decode_images: one call on a GPU has at most 2^31 tiles, got more; decode fewer pictures at a time");
    }
    job.first_tile = schedule.num_tiles;
    schedule.num_tiles += static_cast<std::uint32_t>(num_tiles);
}

DeviceJob job_of(const PictureJob& given, std::uint32_t item, const PictureRecord& record) {
    DeviceJob job{};
    job.record = record;
    job.row = static_cast<std::uint32_t>(given.row);
    job.item = item;
    const int box[4] = {given.box.x0, given.box.y0, given.box.x1, given.box.y1};
    for (int i = 0; i < 4; ++i) job.box[i] = static_cast<std::uint16_t>(box[i]);
    job.flip = given.flip ? 1 : 0;
    job.factors = given.factors;
    return job;
}

}  // namespace

std::int64_t plan_decode_cuda(Plan& plan) {
    auto schedule = std::make_shared<CudaSchedule>();
    std::vector<std::uint32_t> order(plan.jobs.size());
    std::iota(order.begin(), order.end(), 0U);
    const auto key = [&](std::uint32_t i) {
        const PictureRecord& record = plan.index.record(plan.jobs[i].row);
        return record.codec == Codec::jpeg ? std::uint64_t{record.table_set}
                                           : std::numeric_limits<std::uint64_t>::max();
    };
    std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) { return key(a) < key(b); });
    std::uint64_t num_slots = 0;
    for (std::size_t i = 0; i < order.size(); ++i) {
        const PictureJob& given = plan.jobs[order[i]];
        const PictureRecord& record = plan.index.record(given.row);
        DeviceJob job = job_of(given, order[i], record);
        // A block of threads has one set of tables.
        if (i > 0 && key(order[i]) != key(order[i - 1])) {
            num_slots = (num_slots + segment_threads - 1) / segment_threads * segment_threads;
        }
        job.first_slot = static_cast<std::uint32_t>(num_slots);
        job.first_block = static_cast<std::uint32_t>(schedule->num_blocks);
        if (record.codec == Codec::jpeg) {
            const Geometry geometry = geometry_of(record);
            const Box region = region_of(geometry, given.box);
            const bool only_first = plan.style.channels == 1 && record.color != ColorSpace::rgb;
            num_slots += segments_of(geometry, region, record.every).num_slots;
            schedule->num_blocks += count_blocks(record, region, only_first ? 1 : record.num_components);
            schedule->num_tables =
                std::max(schedule->num_tables, count_tables(plan.index.set(record.table_set), record.num_components));
            ++schedule->num_jpeg;
        }
        if (num_slots > std::numeric_limits<std::int32_t>::max() ||
            schedule->num_blocks > std::numeric_limits<std::uint32_t>::max()) {
            throw Unsupported(
                "decode_images: one call on a GPU has at most 2^31 segments and 2^32 blocks, got more; decode fewer "
                "pictures at a time");
        }
        choose_tile(plan.style, job, *schedule);
        schedule->jobs.push_back(job);
    }
    schedule->num_slots =
        static_cast<std::uint32_t>((num_slots + segment_threads - 1) / segment_threads * segment_threads);
    const auto job_bytes = static_cast<std::int64_t>((schedule->jobs.size() * sizeof(DeviceJob) + 255) / 256 * 256);
    const std::int64_t workspace_bytes = job_bytes + static_cast<std::int64_t>(schedule->num_blocks) * num_coefficients;
    plan.schedule = std::move(schedule);
    return workspace_bytes;
}

}  // namespace robocache::decode_detail
