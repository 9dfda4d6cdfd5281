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

#include "cache/files/io.hpp"
#include "robocache/cache.hpp"

namespace robocache::cache_test {

namespace fs = std::filesystem;

inline std::string read_bytes(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

/// Finished files of a cache are read-only.
inline void make_writable(const fs::path& path) {
    if (fs::is_regular_file(path)) fs::permissions(path, fs::perms::owner_write, fs::perm_options::add);
}

inline void write_bytes(const fs::path& path, std::string_view bytes) {
    make_writable(path);
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
    const std::vector<std::int64_t> shape = stream.stored_shape();
    view.dtype = stream.stored_dtype();
    view.rank = static_cast<int>(shape.size()) + 1;
    std::int64_t stride = 1;
    for (int d = view.rank - 1; d >= 0; --d) {
        view.shape[d] = d == 0 ? num_rows : shape[static_cast<std::size_t>(d) - 1];
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
            num_rows += streams[s].has_splits() ? static_cast<std::int64_t>(random() % 5) : 1;
            episode.splits[s].push_back(num_rows);
        }
        std::int64_t bytes = num_rows * size_bytes(streams[s].stored_dtype());
        for (const std::int64_t extent : streams[s].stored_shape()) bytes *= extent;
        episode.values[s].resize(static_cast<std::size_t>(bytes));
        for (char& byte : episode.values[s]) byte = static_cast<char>(random());
        CacheRows& rows = episode.rows[s];
        rows.values = view_of(episode.values[s].data(), streams[s], num_rows);
        rows.times = TensorView(episode.times[s].data(), DType::i64, {num_messages});
        if (streams[s].has_splits()) rows.splits = TensorView(episode.splits[s].data(), DType::i64, {num_messages + 1});
        if (streams[s].is_encoded()) rows.index = TensorView(episode.values[s].data(), DType::u8, {num_rows / 2});
    }
    return episode;
}

inline std::vector<CacheStream> some_streams() {
    return {{"arm", DType::f32, {7}, "vector", false, R"({"rate_hz":500.0})"},
            {"/lidar/points", DType::f32, {4}, "points", true, "{}"},
            {"gripper", DType::u8, {}, "vector", false, "{}"},
            {"camera", DType::u8, {4, 4, 3}, "image", false, "{}", "jpeg"}};
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
            if (rows.index.rank > 0) text += bytes_of(rows.index);
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
    enum class Fault {
        none,
        error,
        error_from_then_on,
        short_write,
        die,
        die_half_written,
        power_loss,         // what was not synced is gone, removals have happened
        power_loss_undone,  // the same, and removals that were not synced have not happened
        kill
    };

    FaultyIo(Fault fault, int at, int error = 0) : fault_(fault), at_(at), error_(error) {}
    int num_calls = 0;
    bool has_unnamed_files = true;  // O_TMPFILE
    int folder_error = 0;           // of every sync of a folder

    int make_folder(const fs::path& path) override {
        return step([&] { return FileIo::make_folder(path); });
    }
    int create(int folder, const std::string& name, mode_t mode) override {
        const int file = step([&] { return FileIo::create(folder, name, mode); });
        if (file >= 0) appeared(file, path_of(folder, name));
        return file;
    }
    int create_unnamed(int folder, mode_t mode) override {
        return step([&] { return has_unnamed_files ? FileIo::create_unnamed(folder, mode) : -EOPNOTSUPP; });
    }
    int link(int file, int folder, const std::string& name) override {
        return step([&] {
            const int result = FileIo::link(file, folder, name);
            if (result >= 0) created_.insert(path_of(folder, name));
            return result;
        });
    }
    int open(int folder, const std::string& name) override {
        const int file = step([&] { return FileIo::open(folder, name); });
        if (file >= 0) open_files_[file] = path_of(folder, name);
        return file;
    }
    ssize_t write(int file, const void* data, std::size_t bytes, off_t offset) override {
        const bool now = !dead_ && num_calls == at_;
        const bool part = now && (fault_ == Fault::short_write || fault_ == Fault::die_half_written);
        if (part) bytes = (bytes + 1) / 2;
        if (part && fault_ == Fault::die_half_written) (void)FileIo::write(file, data, bytes, offset);
        return step([&] {
            const auto found = open_files_.find(file);
            if (found != open_files_.end() && !unsynced_.contains(found->second)) unsynced_[found->second] = offset;
            return FileIo::write(file, data, bytes, offset);
        });
    }
    int resize(int file, off_t bytes) override {
        return step([&] { return FileIo::resize(file, bytes); });
    }
    int set_mode(int file, mode_t mode) override {
        return step([&] { return FileIo::set_mode(file, mode); });
    }
    int sync(int file) override {
        return step([&] {
            const auto found = open_files_.find(file);
            if (found != open_files_.end()) unsynced_.erase(found->second);
            return FileIo::sync(file);
        });
    }
    int close(int file) override {
        open_files_.erase(file);
        if (dead_) return FileIo::close(file);
        const int result = step([&] { return FileIo::close(file); });
        if (result < 0) (void)FileIo::close(file);  // as Linux does
        return result;
    }
    int rename(int folder, const std::string& from, const std::string& to, bool replace) override {
        return step([&] {
            const fs::path source = path_of(folder, from);
            const fs::path target = path_of(folder, to);
            renames_.push_back({source, target, fs::exists(target) ? std::optional(read_bytes(target)) : std::nullopt});
            if (auto node = unsynced_.extract(source)) {  // a rename syncs no data
                node.key() = target;
                unsynced_.insert(std::move(node));
            }
            return FileIo::rename(folder, from, to, replace);
        });
    }
    int unlink(int folder, const std::string& name) override {
        return step([&] {
            const fs::path path = path_of(folder, name);
            removed_[path] = read_bytes(path);
            created_.erase(path);
            return FileIo::unlink(folder, name);
        });
    }
    int sync_folder(int folder) override {
        return step([&] {
            if (folder_error != 0) return -folder_error;
            renames_.clear();
            created_.clear();
            removed_.clear();
            return FileIo::sync_folder(folder);
        });
    }

private:
    struct Rename {
        fs::path from, to;
        std::optional<std::string> before;
    };

    static fs::path path_of(int folder, const std::string& name) {
        return fs::read_symlink("/proc/self/fd/" + std::to_string(folder)) / name;
    }

    void appeared(int file, const fs::path& path) {
        open_files_[file] = path;
        unsynced_[path] = 0;
        created_.insert(path);
    }

    template <class Call>
    auto step(const Call& call) -> decltype(call()) {
        if (dead_) return -EIO;
        const int number = num_calls++;
        const bool now = number == at_;
        if (now && fault_ == Fault::kill) ::raise(SIGKILL);
        const bool power = fault_ == Fault::power_loss || fault_ == Fault::power_loss_undone;
        if (now && power) lose_power();
        dead_ = now && (fault_ == Fault::die || fault_ == Fault::die_half_written || power);
        if (dead_) throw Killed{};
        if (now && fault_ == Fault::error) return -error_;
        if (number >= at_ && fault_ == Fault::error_from_then_on) return -error_;
        return call();
    }

    /// What was never synced is gone: bytes of files, renames, and the names of new files.
    void lose_power() {
        for (const auto& [path, synced] : unsynced_) {
            if (!fs::exists(path)) continue;
            make_writable(path);
            const auto kept = static_cast<std::uintmax_t>(synced);
            fs::resize_file(path, kept + (fs::file_size(path) - kept) / 2);
        }
        for (auto it = renames_.rbegin(); it != renames_.rend(); ++it) {
            if (fs::exists(it->to)) fs::rename(it->to, it->from);
            if (it->before) write_bytes(it->to, *it->before);
        }
        for (const fs::path& path : created_) fs::remove(path);
        if (fault_ != Fault::power_loss_undone) return;
        for (const auto& [path, bytes] : removed_) {
            if (!created_.contains(path)) write_bytes(path, bytes);
        }
    }

    Fault fault_;
    int at_;
    int error_;
    bool dead_ = false;
    std::map<int, fs::path> open_files_;
    std::map<fs::path, off_t> unsynced_;  // and where the bytes begin that are not on disk yet
    std::set<fs::path> created_;          // since the last sync of the folder
    std::map<fs::path, std::string> removed_;
    std::vector<Rename> renames_;
};

}  // namespace robocache::cache_test
