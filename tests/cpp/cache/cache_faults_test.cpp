// The disk fails, fills up or dies at every call of a writer; files are damaged bit by bit.
#include <gtest/gtest.h>

#include "cache/format/crc32c.hpp"
#include "cache/format/manifest.hpp"
#include "cache/format/safetensors.hpp"
#include "cache_cases.hpp"

namespace robocache {
namespace {

using namespace cache_detail;
using namespace cache_test;
using Fault = FaultyIo::Fault;

/// Names that a writer gives, and some like them; the bytes of each are its name.
const std::set<std::string> foreign_names = {"run-20240115.mcap",
                                             "shard-00000-00000001.safetensors.bak",
                                             "episodes-00000002.parquet",
                                             "shard-00001-00000003.safetensors",
                                             "manifest.json.tmp",
                                             "manifest-00000004.json",
                                             "notes.txt",
                                             "shard-00000-00000009.safetensors",
                                             "manifest.json.next.tmp"};

/// Writes version 2 over version 1 (or over nothing) on a faulty disk, and looks at what is left.
class CacheFaults : public CacheTest {
protected:
    void SetUp() override {
        CacheTest::SetUp();
        for (const unsigned seed : {1U, 2U}) {
            const fs::path clean = root / ("clean" + std::to_string(seed));
            write_version(clean, seed);
            expected[seed] = contents(CacheReader(clean));
        }
        FaultyIo counting(Fault::none, -1);
        write_version(root / "clean1", 2, &counting);
        num_calls = counting.num_calls + 12;  // without unnamed files, or after a stopped ingest, there are more
    }

    /// Version 1 and, beside it, files of others.
    void prepare(bool over_version_1) {
        fs::remove_all(folder);
        if (!over_version_1) return;
        write_version(folder, 1);
        for (const std::string& name : foreign_names) write_bytes(folder / name, name);
    }

    /// Old, new, or a typed error where there was nothing before; and the next ingest leaves nothing behind.
    void look(bool over_version_1, bool resume) {
        try {
            const CacheReader reader(folder);
            const std::string found = contents(reader);
            EXPECT_TRUE(found == expected[2] || (over_version_1 && found == expected[1]));
            EXPECT_EQ(reader.verify(), std::vector<std::string>{});
        } catch (const FormatError& error) {
            EXPECT_FALSE(over_version_1) << error.what();
        }
        write_version(folder, 2, nullptr, resume);
        const CacheReader reader(folder);
        EXPECT_EQ(contents(reader), expected[2]);
        std::set<std::string> names = names_of(reader);
        if (over_version_1) {
            for (const std::string& name : foreign_names) EXPECT_EQ(read_bytes(folder / name), name);
            names.insert(foreign_names.begin(), foreign_names.end());
        }
        EXPECT_EQ(names_in(folder), names);
    }

    std::map<unsigned, std::string> expected;
    int num_calls = 0;
};

TEST_F(CacheFaults, DeathAtEveryCallLeavesTheOldCacheOrTheNewOneAndNoFileOfOthersChanges) {
    for (const Fault fault : {Fault::die, Fault::die_half_written, Fault::power_loss, Fault::power_loss_undone}) {
        int deaths = 0;
        for (int at = 0; at < num_calls; ++at) {
            for (const bool over : {false, true}) {
                prepare(over);
                FaultyIo io(fault, at);
                io.has_unnamed_files = at % 2 == 0 || over;
                try {
                    write_version(folder, 2, &io);
                } catch (const Killed&) {
                    ++deaths;
                }
                look(over, at % 3 == 0);
            }
        }
        EXPECT_GT(deaths, 40);
    }
}

TEST_F(CacheFaults, DeathWhileAStoppedIngestIsResumedOrReplacedLosesNothing) {
    for (const Fault fault : {Fault::die, Fault::power_loss, Fault::power_loss_undone}) {
        int deaths = 0;
        for (int at = 0; at < num_calls; ++at) {
            for (const bool resume : {false, true}) {
                prepare(at % 2 == 0);
                FaultyIo stopped(fault, 14);  // two shards are there, perhaps
                EXPECT_THROW(write_version(folder, 2, &stopped), Killed);
                FaultyIo io(fault, at);
                try {
                    write_version(folder, 2, &io, resume);
                } catch (const Killed&) {
                    ++deaths;
                }
                look(at % 2 == 0, at % 3 == 0);
            }
        }
        EXPECT_GT(deaths, 40);
    }
}

TEST_F(CacheFaults, AStoppedFirstIngestStaysResumableWhenOthersPutFilesBesideIt) {
    for (int at = 0; at < num_calls; ++at) {
        fs::remove_all(folder);
        FaultyIo stopped(Fault::die, 14);
        EXPECT_THROW(write_version(folder, 2, &stopped), Killed);
        for (const std::string& name : foreign_names) write_bytes(folder / name, name);
        FaultyIo io(Fault::die, at);
        try {
            write_version(folder, 1, &io);
        } catch (const Killed&) {
        }
        write_version(folder, 2, nullptr, at % 2 == 0);
        const CacheReader reader(folder);
        EXPECT_EQ(contents(reader), expected[2]);
        std::set<std::string> names = names_of(reader);
        names.insert(foreign_names.begin(), foreign_names.end());
        EXPECT_EQ(names_in(folder), names);
        for (const std::string& name : foreign_names) EXPECT_EQ(read_bytes(folder / name), name);
    }
}

TEST_F(CacheFaults, AfterADeathAtAnyCallRemovingLeftoversLeavesTheCacheAlone) {
    for (int at = 0; at < num_calls; ++at) {
        prepare(true);
        FaultyIo io(Fault::die, at);
        try {
            write_version(folder, 2, &io);
        } catch (const Killed&) {
        }
        remove_leftovers(folder);
        const CacheReader reader(folder);
        EXPECT_TRUE(contents(reader) == expected[1] || contents(reader) == expected[2]);
        std::set<std::string> names = names_of(reader);
        names.insert(foreign_names.begin(), foreign_names.end());
        EXPECT_EQ(names_in(folder), names) << at;
    }
}

TEST_F(CacheFaults, AProcessKilledAtEveryCallLeavesTheOldCacheOrTheNewOne) {
    int deaths = 0;
    for (int at = 0; at < num_calls; ++at) {
        for (const bool over : {false, true}) {
            prepare(over);
            const pid_t child = fork();
            ASSERT_GE(child, 0);
            if (child == 0) {
                FaultyIo io(Fault::kill, at);
                io.has_unnamed_files = at % 4 < 2;
                write_version(folder, 2, &io);
                _exit(0);
            }
            int status = 0;
            ASSERT_EQ(waitpid(child, &status, 0), child);
            deaths += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL ? 1 : 0;
            look(over, at % 2 == 0);
        }
    }
    EXPECT_GT(deaths, 50);
}

TEST_F(CacheFaults, AFileSystemThatCannotSyncFoldersWorksAndIsNoted) {
    for (const int error : {EINVAL, ENOTSUP, EBADF}) {
        prepare(true);
        FaultyIo io(Fault::none, -1);
        io.folder_error = error;
        const std::vector<CacheStream> streams = some_streams();
        CacheWriter writer(folder, streams, {.shard_bytes = 1, .io = &io});
        for (unsigned e = 0; e < 3; ++e) writer.add(e + 10, make_episode(streams, 20 + e).rows);
        writer.commit();
        ASSERT_EQ(writer.notes().size(), 2U);  // the other: a file that looks like a shard of a stopped ingest
        EXPECT_NE(writer.notes()[1].find("cannot sync folders"), std::string::npos);
        EXPECT_EQ(CacheReader(folder).verify(), std::vector<std::string>{});
    }
}

TEST_F(CacheFaults, AFailingDiskGivesATypedErrorThatNamesThePathAndCommitsNothingHalf) {
    for (const Fault fault : {Fault::error, Fault::error_from_then_on}) {
        for (const int error : {EIO, ENOSPC, EDQUOT}) {
            int failures = 0;
            for (int at = 0; at < num_calls; ++at) {
                prepare(true);
                FaultyIo io(fault, at, error);
                try {
                    write_version(folder, 2, &io);
                } catch (const FormatError& failure) {
                    ++failures;
                    EXPECT_NE(std::string(failure.what()).find(root.string()), std::string::npos) << failure.what();
                    EXPECT_NE(std::string(failure.what()).find(std::strerror(error)), std::string::npos);
                }
                look(true, at % 2 == 0);
            }
            EXPECT_GT(failures, 20);
        }
    }
}

TEST_F(CacheFaults, InterruptedAndShortWritesAreContinued) {
    for (const Fault fault : {Fault::error, Fault::short_write}) {
        for (int at = 0; at < num_calls; ++at) {
            prepare(true);
            FaultyIo io(fault, at, EINTR);
            try {
                write_version(folder, 2, &io);
                EXPECT_EQ(contents(CacheReader(folder)), expected[2]);
            } catch (const FormatError&) {
                EXPECT_EQ(fault, Fault::error);  // only writes are tried again
            }
            look(true, false);
        }
    }
}

TEST_F(CacheFaults, AWriterWhoseDiskFailedTakesNothingMore) {
    const std::vector<CacheStream> streams = some_streams();
    FaultyIo io(Fault::error_from_then_on, 5, EIO);
    CacheWriter writer(folder, streams, {.shard_bytes = 1, .io = &io});
    EXPECT_THROW(
        {
            for (unsigned e = 0; e < 9; ++e) writer.add(e, make_episode(streams, e).rows);
        },
        FormatError);
    EXPECT_THROW(writer.commit(), InvalidArgument);
    EXPECT_THROW(CacheReader{folder}, FormatError);
}

TEST_F(CacheFaults, WhatCannotBeOpenedIsNotCommittedAndTheVersionBeforeStays) {
    const std::vector<CacheStream> streams = some_streams();
    for (const bool resume : {false, true}) {
        prepare(true);
        {
            CacheWriter writer(folder, streams, {.shard_bytes = 1});
            for (unsigned e = 0; e < 3; ++e) writer.add(e + 10, make_episode(streams, 20 + e).rows);
            const fs::path shard = folder / ("shard-00001-" + hex(writer.generation()) + ".safetensors");
            ASSERT_TRUE(fs::exists(shard));
            make_writable(shard);
            fs::resize_file(shard, 100);
            EXPECT_THROW(writer.commit(), FormatError);
            EXPECT_EQ(contents(CacheReader(folder)), expected[1]);
        }
        look(true, resume);
    }
}

// ---- damage
// ----------------------------------------------------------------------------------------------------------

class CacheDamage : public CacheTest {
protected:
    void SetUp() override {
        CacheTest::SetUp();
        const std::vector<CacheStream> streams = some_streams();
        CacheWriter writer(folder, streams, {.shard_bytes = 1 << 30});
        for (unsigned e = 0; e < 5; ++e) writer.add(e, make_episode(streams, e, 40).rows);
        writer.attach("episodes", "parquet", "a table");
        writer.commit();
    }
    fs::path manifest() const { return folder / "manifest.json"; }
    fs::path shard() const { return folder / "shard-00000-00000001.safetensors"; }

    /// Changes one bit of a file in place.
    static void flip(const fs::path& path, std::size_t bit) {
        make_writable(path);
        std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
        file.seekg(static_cast<std::streamoff>(bit / 8));
        const auto byte = static_cast<char>(file.get() ^ (1 << (bit % 8)));
        file.seekp(static_cast<std::streamoff>(bit / 8));
        file.put(byte);
    }
};

TEST_F(CacheDamage, EveryBitOfTheManifestCounts) {
    std::string text = read_bytes(manifest());
    for (std::size_t bit = 0; bit < text.size() * 8; ++bit) {
        text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << (bit % 8)));
        EXPECT_THROW((void)parse_manifest(text, "m"), FormatError) << bit;
        text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << (bit % 8)));
    }
    for (std::size_t size = 0; size < text.size(); ++size) {
        EXPECT_THROW((void)parse_manifest(std::string_view(text).substr(0, size), "m"), FormatError) << size;
    }
    EXPECT_THROW((void)parse_manifest(text + "\n", "m"), FormatError);
    flip(manifest(), 100);
    EXPECT_THROW(CacheReader{folder}, FormatError);
    EXPECT_THROW(CacheWriter(folder, some_streams()), FormatError);  // it is not thrown away either
}

TEST_F(CacheDamage, EveryBitOfAShardsHeaderCounts) {
    const std::string bytes = read_bytes(shard());
    const auto header = static_cast<std::size_t>(parse_safetensors(bytes, "s").size_bytes);
    for (std::size_t bit = 0; bit < header * 8; ++bit) {
        flip(shard(), bit);
        EXPECT_THROW(CacheReader{folder}, FormatError) << bit;
        flip(shard(), bit);
    }
    EXPECT_EQ(CacheReader(folder).verify(), std::vector<std::string>{});
}

TEST_F(CacheDamage, EveryFlipOfDataIsFound) {
    const std::size_t size = fs::file_size(shard());
    const auto header = static_cast<std::size_t>(parse_safetensors(read_bytes(shard()), "s").size_bytes);
    std::mt19937_64 random(5);
    for (int i = 0; i < 10000; ++i) {
        const std::size_t bit = header * 8 + random() % ((size - header) * 8);
        flip(shard(), bit);
        const CacheReader reader(folder);
        EXPECT_EQ(reader.verify().size(), 1U) << bit;
        try {
            (void)contents(reader);  // unverified: wrong numbers or an error, nothing outside the file
        } catch (const FormatError&) {
        }
        flip(shard(), bit);
    }
    flip(folder / "episodes-00000001.parquet", 9);
    EXPECT_EQ(CacheReader(folder).verify().size(), 1U);
}

TEST_F(CacheDamage, ShortenedFilesAreFoundAlsoUnderAReader) {
    const std::vector<CacheStream> streams = {{"camera", DType::u8, {64, 64, 3}, "image", false, "{}"}};
    CacheWriter writer(folder, streams);
    writer.add(0, make_episode(streams, 6, 200).rows);
    writer.commit();
    const fs::path path = folder / "shard-00000-00000002.safetensors";
    const std::string bytes = read_bytes(path);
    ASSERT_GT(bytes.size(), 100000U);
    for (std::size_t size = 0; size < bytes.size(); size += size < 4096 ? 1 : 4096) {
        EXPECT_THROW((void)parse_safetensors(std::string_view(bytes).substr(0, size), "s"), FormatError);
        if (size % 4096 != 0) continue;
        const CacheReader open_before(folder);
        make_writable(path);
        fs::resize_file(path, size);
        EXPECT_THROW(CacheReader{folder}, FormatError);
        EXPECT_FALSE(open_before.verify().empty());
        fs::remove(path);
        write_bytes(path, bytes);
    }
    write_bytes(path, bytes + "x");
    EXPECT_THROW(CacheReader{folder}, FormatError);
    fs::remove(path);
    EXPECT_THROW(CacheReader{folder}, FormatError);
}

}  // namespace
}  // namespace robocache
