// Writes seeds for the fuzz targets: make_seeds FOLDER makes FOLDER/manifest, FOLDER/shard, FOLDER/reader
// and FOLDER/picture.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "robocache/cache.hpp"
#include "robocache/decode.hpp"
#include "tiny_picture.hpp"

using namespace robocache;
namespace fs = std::filesystem;

namespace {

/// A cache of `num_episodes` small episodes of the streams that fuzz_reader.cpp expects.
void write_cache(const fs::path& folder, int num_episodes, int num_rows) {
    const std::vector<CacheStream> streams = {{"arm", DType::f32, {7}, "vector", false, R"({"rate_hz":500.0})"},
                                              {"cloud", DType::f32, {4}, "points", true, R"({"names":["x","\u00e4"]})"},
                                              {"gripper", DType::u8, {}, "vector", false, "{}"}};
    CacheWriter writer(folder, streams, {.fingerprint = "seed"});
    for (int e = 0; e < num_episodes; ++e) {
        const std::int64_t n = num_rows + e;
        const std::vector<float> arm(static_cast<std::size_t>(n) * 7, 0.5F),
            cloud(static_cast<std::size_t>(n) * 8, 2.0F);
        const std::vector<unsigned char> gripper(static_cast<std::size_t>(n), 1);
        std::vector<std::int64_t> times, splits = {0};
        for (std::int64_t i = 0; i < n; ++i) {
            times.push_back(i * 2000000);
            splits.push_back(2 * i + 2);
        }
        const TensorView t(times.data(), DType::i64, {n});
        const CacheRows rows[] = {{{arm.data(), DType::f32, {n, 7}}, t, {}, {}},
                                  {{cloud.data(), DType::f32, {2 * n, 4}}, t, {splits.data(), DType::i64, {n + 1}}, {}},
                                  {{gripper.data(), DType::u8, {n}}, t, {}, {}}};
        writer.add(e, rows, R"({"task":"pick","meta":{"a":[1,2.5,null,true]}})");
    }
    writer.attach("episodes", "parquet", "PAR1");
    writer.commit(R"({"source":{"format":"mcap"}})");
}

/// What fuzz_picture.cpp takes: a byte that chooses, then a picture or an index.
void write_pictures(const fs::path& folder) {
    const auto write = [&](const std::string& name, char choice, std::span<const std::uint8_t> bytes) {
        std::ofstream file(folder / name, std::ios::binary);
        file.put(choice).write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    };
    for (const bool restart : {false, true}) {
        const std::vector<std::uint8_t> picture = tiny_picture(restart);
        const std::vector<std::int64_t> offsets{0, static_cast<std::int64_t>(picture.size())};
        const std::string name = restart ? "restart" : "plain";
        write(name, 0, picture);
        write(name + "_header", 1, picture);
        write(name + "_index", 2, index_pictures(picture, offsets, {.every = 1}).bytes());
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) return 2;
    const fs::path out = argv[1];
    for (const char* target : {"manifest", "shard", "reader", "picture"}) fs::create_directories(out / target);
    write_pictures(out / "picture");
    int number = 0;
    for (const int num_episodes : {0, 1, 3, 9}) {
        for (const int num_rows : {0, 1, 5}) {
            const fs::path cache = out / "cache";
            fs::remove_all(cache);
            write_cache(cache, num_episodes, num_rows);
            const std::string name = std::to_string(number++);
            fs::copy_file(cache / "manifest.json", out / "manifest" / name, fs::copy_options::overwrite_existing);
            const fs::path shard = cache / "shard-00000-00000001.safetensors";
            if (!fs::exists(shard)) continue;
            for (const char* target : {"shard", "reader"}) {
                fs::copy_file(shard, out / target / name, fs::copy_options::overwrite_existing);
            }
        }
    }
    fs::remove_all(out / "cache");
}
