// Small caches for the tests of the cache, and a disk that fails or dies at any call.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cache/io.hpp"
#include "robocache/cache.hpp"

namespace robocache::cache_test {

namespace fs = std::filesystem;

inline std::string read_bytes(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_bytes(const fs::path& path, std::string_view bytes) {
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

class CacheTest : public testing::Test {
protected:
    void SetUp() override {
        // In memory where that is possible: these tests sync thousands of times.
        const fs::path base = ::access("/dev/shm", W_OK) == 0 ? fs::path("/dev/shm") : fs::temp_directory_path();
        std::string pattern = (base / "robocache_XXXXXX").string();
        ASSERT_NE(mkdtemp(pattern.data()), nullptr);
        root = pattern;
        folder = root / "cache";
    }
    void TearDown() override { fs::remove_all(root); }

    fs::path root;
    fs::path folder;
};

/// The arrays of one episode, and the views that CacheWriter::add takes.
struct EpisodeData {
    std::vector<std::string> values;
    std::vector<std::vector<std::int64_t>> times, splits;
    std::vector<CacheRows> rows;
};

inline TensorView view_of(const void* data, const CacheStream& stream, std::int64_t num_rows) {
    TensorView view;
    view.data = const_cast<void*>(data);
    view.dtype = stream.dtype;
    view.rank = static_cast<int>(stream.shape.size()) + 1;
    std::int64_t stride = 1;
    for (int d = view.rank - 1; d >= 0; --d) {
        view.shape[d] = d == 0 ? num_rows : stream.shape[static_cast<std::size_t>(d) - 1];
        view.strides[d] = stride;
        stride *= view.shape[d];
    }
    return view;
}

/// Random bytes: every bit pattern of every dtype. Some streams have no rows.
inline EpisodeData make_episode(const std::vector<CacheStream>& streams, unsigned seed, std::int64_t max_rows = 12) {
    std::mt19937 random(seed);
    const std::size_t n = streams.size();
    EpisodeData episode{std::vector<std::string>(n), {}, {}, std::vector<CacheRows>(n)};
    episode.times.resize(n);
    episode.splits.resize(n);
    for (std::size_t s = 0; s < n; ++s) {
        const std::int64_t num_messages = std::uniform_int_distribution<std::int64_t>(0, max_rows)(random);
        std::int64_t num_rows = 0;
        episode.splits[s] = {0};
        for (std::int64_t m = 0; m < num_messages; ++m) {
            episode.times[s].push_back(static_cast<std::int64_t>(seed) * 1000 + m / 2);
            num_rows += streams[s].ragged ? static_cast<std::int64_t>(random() % 5) : 1;
            episode.splits[s].push_back(num_rows);
        }
        std::int64_t bytes = num_rows * size_bytes(streams[s].dtype);
        for (const std::int64_t extent : streams[s].shape) bytes *= extent;
        episode.values[s].resize(static_cast<std::size_t>(bytes));
        for (char& byte : episode.values[s]) byte = static_cast<char>(random());
        CacheRows& rows = episode.rows[s];
        rows.values = view_of(episode.values[s].data(), streams[s], num_rows);
        rows.times = TensorView(episode.times[s].data(), DType::i64, {num_messages});
        if (streams[s].ragged) rows.splits = TensorView(episode.splits[s].data(), DType::i64, {num_messages + 1});
    }
    return episode;
}

inline std::vector<CacheStream> some_streams() {
    return {{"arm", DType::f32, {7}, "vector", false, R"({"rate_hz":500.0})"},
            {"/lidar/points", DType::f32, {4}, "points", true, "{}"},
            {"gripper", DType::u8, {}, "vector", false, "{}"}};
}

inline std::string bytes_of(const TensorView& view) {
    if (view.rank == 0) return "-";
    const auto size = static_cast<std::size_t>(view.num_elements() * size_bytes(view.dtype));
    return size == 0 ? shape_text(view) : shape_text(view) + std::string(static_cast<const char*>(view.data), size);
}

/// Everything a reader can say of its episodes, as bytes.
inline std::string contents(const CacheReader& reader) {
    std::string text;
    for (std::int64_t e = 0; e < reader.num_episodes(); ++e) {
        text += std::to_string(reader.episode_index(e)) + std::string(reader.episode_json(e));
        for (std::size_t s = 0; s < reader.streams().size(); ++s) {
            const CacheRows rows = reader.rows(e, s);
            text += bytes_of(rows.values) + bytes_of(rows.times);
            if (rows.splits.rank == 0) continue;
            const auto* splits = static_cast<const std::int64_t*>(rows.splits.data);
            for (std::int64_t m = 0; m < rows.splits.shape[0]; ++m) text += std::to_string(splits[m] - splits[0]) + ",";
        }
    }
    return text;
}

/// Three episodes, a shard each, and an attached file.
inline void write_version(const fs::path& folder, unsigned seed, FileIo* io = nullptr, bool resume = false) {
    const std::vector<CacheStream> streams = some_streams();
    CacheWriter writer(folder, streams,
                       {.shard_bytes = 1, .fingerprint = std::to_string(seed), .resume = resume, .io = io});
    for (auto e = static_cast<unsigned>(writer.num_episodes()); e < 3; ++e) {
        writer.add(e + 10, make_episode(streams, seed * 10 + e).rows, R"({"task":"fold \u00e4"})");
    }
    writer.attach("episodes", "parquet", "not really " + std::to_string(seed));
    writer.commit(R"({"seed":)" + std::to_string(seed) + "}");
}

inline std::set<std::string> names_in(const fs::path& folder) {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
    return names;
}

inline std::set<std::string> names_of(const CacheReader& reader) {
    std::set<std::string> names;
    for (const fs::path& path : reader.files()) names.insert(path.filename().string());
    return names;
}

struct Killed {};

/// Numbers every call. At call number `at` it fails, or dies: then nothing reaches the disk any more.
class FaultyIo : public FileIo {
public:
    enum class Fault { none, error, error_from_then_on, short_write, die, die_half_written, power_loss, kill };

    FaultyIo(Fault fault, int at, int error = 0) : fault_(fault), at_(at), error_(error) {}
    int num_calls = 0;

    int make_folder(const fs::path& path) override {
        return step([&] { return FileIo::make_folder(path); });
    }
    int create(const fs::path& path) override {
        const int file = step([&] { return FileIo::create(path); });
        if (file >= 0) {
            open_files_[file] = path;
            unsynced_.insert(path);
        }
        return file;
    }
    ssize_t write(int file, const void* data, std::size_t bytes, off_t offset) override {
        const bool now = !dead_ && num_calls == at_;
        const bool part = now && (fault_ == Fault::short_write || fault_ == Fault::die_half_written);
        if (part) bytes = (bytes + 1) / 2;
        if (part && fault_ == Fault::die_half_written) (void)FileIo::write(file, data, bytes, offset);
        return step([&] { return FileIo::write(file, data, bytes, offset); });
    }
    int sync(int file) override {
        return step([&] {
            unsynced_.erase(open_files_[file]);
            return FileIo::sync(file);
        });
    }
    int close(int file) override {
        if (dead_) return FileIo::close(file);
        const int result = step([&] { return FileIo::close(file); });
        if (result < 0) (void)FileIo::close(file);  // as Linux does
        return result;
    }
    int rename(const fs::path& from, const fs::path& to) override {
        return step([&] {
            renames_.push_back({from, to, fs::exists(to) ? std::optional(read_bytes(to)) : std::nullopt});
            if (unsynced_.erase(from) > 0) unsynced_.insert(to);  // a rename syncs no data
            return FileIo::rename(from, to);
        });
    }
    int unlink(const fs::path& path) override {
        return step([&] { return FileIo::unlink(path); });
    }
    int sync_folder(const fs::path& path) override {
        return step([&] {
            renames_.clear();
            return FileIo::sync_folder(path);
        });
    }

private:
    struct Rename {
        fs::path from, to;
        std::optional<std::string> before;
    };

    template <class Call>
    auto step(const Call& call) -> decltype(call()) {
        if (dead_) return -EIO;
        const int number = num_calls++;
        const bool now = number == at_;
        if (now && fault_ == Fault::kill) ::raise(SIGKILL);
        if (now && fault_ == Fault::power_loss) lose_power();
        dead_ = now && (fault_ == Fault::die || fault_ == Fault::die_half_written || fault_ == Fault::power_loss);
        if (dead_) throw Killed{};
        if (now && fault_ == Fault::error) return -error_;
        if (number >= at_ && fault_ == Fault::error_from_then_on) return -error_;
        return call();
    }

    /// What was never synced is gone: bytes of files, and renames; removals have happened.
    void lose_power() {
        for (const fs::path& path : unsynced_) {
            if (fs::exists(path)) fs::resize_file(path, fs::file_size(path) / 2);
        }
        for (auto it = renames_.rbegin(); it != renames_.rend(); ++it) {
            if (fs::exists(it->to)) fs::rename(it->to, it->from);
            if (it->before) write_bytes(it->to, *it->before);
        }
    }

    Fault fault_;
    int at_;
    int error_;
    bool dead_ = false;
    std::map<int, fs::path> open_files_;
    std::set<fs::path> unsynced_;
    std::vector<Rename> renames_;
};

}  // namespace robocache::cache_test
