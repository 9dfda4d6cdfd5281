// The cache as a user links it: round trips, versions, resuming, bad calls; and the JSON and CRC32C below it.
#include "robocache/cache.hpp"

#include <gtest/gtest.h>

#include <thread>

#include "cache/format/crc32c.hpp"
#include "cache/format/json.hpp"
#include "cache/reader.hpp"
#include "cache_cases.hpp"

namespace robocache {
namespace {

using namespace cache_detail;
using namespace cache_test;

std::vector<CacheStream> streams_of_all_dtypes() {
    std::vector<CacheStream> streams;
    for (int i = 0; i <= static_cast<int>(DType::f64); ++i) {
        const auto dtype = static_cast<DType>(i);
        streams.push_back({std::string("vector/") + name(dtype), dtype, {3}, "vector", false, "{}"});
        streams.push_back({std::string("image.") + name(dtype), dtype, {2, 3, 2}, "image", false, "{}"});
        streams.push_back({std::string("points ") + name(dtype), dtype, {}, "points", true, "{}"});
    }
    return streams;
}

TEST_F(CacheTest, WhatWasWrittenComesBackBitForBitInEveryDtype) {
    const std::vector<CacheStream> streams = streams_of_all_dtypes();
    for (const std::int64_t shard_bytes : {1, 5000, 1 << 30}) {
        std::string expected;
        CacheWriter writer(folder, streams, {.shard_bytes = shard_bytes});
        for (unsigned e = 0; e < 20; ++e) {
            const EpisodeData episode = make_episode(streams, e);
            const std::string json = R"({"task":"number )" + std::to_string(e) + "\"}";
            writer.add(e * 7, episode.rows, json);
            expected += std::to_string(e * 7) + json;
            for (std::size_t s = 0; s < streams.size(); ++s) {
                expected += bytes_of(episode.rows[s].values) + bytes_of(episode.rows[s].times);
                if (!streams[s].ragged) continue;
                for (const std::int64_t split : episode.splits[s]) expected += std::to_string(split) + ",";
            }
        }
        writer.commit();
        const CacheReader reader(folder);
        EXPECT_EQ(contents(reader), expected);
        EXPECT_EQ(reader.verify(), std::vector<std::string>{});
        EXPECT_EQ(reader.num_shards() == 1, shard_bytes == 1 << 30);
        EXPECT_EQ(names_in(folder), names_of(reader));
    }
}

TEST_F(CacheTest, EncodedPicturesComeBackWithTheIndexOfTheirEpisode) {
    const CacheStream camera{"camera", DType::u8, {480, 640, 3}, "image", false, "{}", "jpeg"};
    const std::string bytes = "onetwothree";
    const std::string index = "index";
    const std::int64_t times[] = {10, 20, 30};
    const std::int64_t splits[] = {0, 3, 6, 11};
    CacheRows rows;
    rows.values = TensorView(bytes.data(), DType::u8, {11});
    rows.times = TensorView(times, DType::i64, {3});
    rows.splits = TensorView(splits, DType::i64, {4});
    rows.index = TensorView(index.data(), DType::u8, {5});
    for (const std::int64_t shard_bytes : {1, 1 << 20}) {
        CacheWriter writer(folder, {camera}, {.shard_bytes = shard_bytes});
        writer.add(0, std::vector<CacheRows>{rows});
        writer.add(1, std::vector<CacheRows>{{}});
        writer.add(2, std::vector<CacheRows>{rows});
        writer.commit();
        const CacheReader reader(folder);
        EXPECT_EQ(reader.verify(), std::vector<std::string>{});
        EXPECT_EQ(reader.streams()[0].codec, "jpeg");
        EXPECT_EQ(reader.rows(1, 0).times.shape[0], 0);
        for (const std::int64_t episode : {0, 2}) {
            const CacheRows read = reader.rows(episode, 0);
            EXPECT_EQ(bytes_of(read.values), bytes_of(rows.values));
            EXPECT_EQ(bytes_of(read.index), bytes_of(rows.index));
            const auto* found = static_cast<const std::int64_t*>(read.splits.data);
            for (int m = 0; m < 4; ++m) EXPECT_EQ(found[m] - found[0], splits[m]);
        }
    }
    // Earlier releases know version 1 alone.
    EXPECT_NE(read_bytes(folder / "manifest.json").find("\"version\":2,"), std::string::npos);
}

TEST_F(CacheTest, WholeShardsHaveTheLayoutThatAlignReads) {
    const std::vector<CacheStream> streams = some_streams();
    CacheWriter writer(folder, streams, {.shard_bytes = 700});
    for (unsigned e = 0; e < 9; ++e) writer.add(e, make_episode(streams, e).rows);
    writer.commit();
    const CacheReader reader(folder);
    ASSERT_GT(reader.num_shards(), 1);
    for (std::int64_t shard = 0; shard < reader.num_shards(); ++shard) {
        const CacheRows all = reader.shard_rows(shard, reader.stream("arm"));
        const auto* offsets = static_cast<const std::int64_t*>(all.offsets.data);
        for (std::int64_t e = reader.first_episode(shard); e < reader.first_episode(shard + 1); ++e) {
            const std::int64_t local = e - reader.first_episode(shard);
            EXPECT_EQ(bytes_of(reader.rows(e, 0).values),
                      bytes_of(all.values.slice(0, offsets[local], offsets[local + 1])));
        }
    }
    EXPECT_THROW((void)reader.shard_rows(reader.num_shards(), 0), InvalidArgument);
    EXPECT_THROW((void)reader.rows(9, 0), InvalidArgument);
    EXPECT_THROW((void)reader.rows(-1, 0), InvalidArgument);
    EXPECT_THROW((void)reader.rows(0, streams.size()), InvalidArgument);
    EXPECT_THROW((void)reader.stream("leg"), InvalidArgument);
}

TEST_F(CacheTest, AnEmptyCacheAndAnEmptyEpisodeAreCaches) {
    CacheWriter(folder, some_streams()).commit();
    EXPECT_EQ(CacheReader(folder).num_episodes(), 0);
    CacheWriter writer(folder, some_streams());
    writer.add(0, std::vector<CacheRows>(some_streams().size()));
    writer.commit();
    const CacheReader reader(folder);
    EXPECT_EQ(reader.rows(0, 0).values.shape[0], 0);
    EXPECT_EQ(reader.rows(0, 1).splits.shape[0], 1);
    EXPECT_EQ(reader.verify(), std::vector<std::string>{});
    CacheWriter(folder, {}).commit();
    EXPECT_TRUE(CacheReader(folder).streams().empty());
}

TEST_F(CacheTest, AReaderKeepsItsVersionWhileNewOnesAreWritten) {
    write_version(folder, 1);
    const CacheReader first(folder);
    const std::string before = contents(first);
    for (unsigned seed = 2; seed < 5; ++seed) {
        write_version(folder, seed);
        EXPECT_EQ(contents(first), before);
        EXPECT_EQ(CacheReader(folder).generation(), seed);
    }
    EXPECT_EQ(first.generation(), 1U);
    EXPECT_EQ(CacheReader(folder).metadata(), R"({"seed":4})");
    EXPECT_EQ(CacheReader(folder).streams()[0].details, R"({"rate_hz":500.0})");
}

TEST_F(CacheTest, ReadersThatOpenWhileAWriterReplacesTheCacheNeverFail) {
    std::set<std::string> versions;
    for (unsigned seed = 1; seed < 3; ++seed) {
        write_version(folder, seed);
        versions.insert(contents(CacheReader(folder)));
    }
    std::atomic<bool> done{false};
    std::atomic<int> wrong{0};
    std::vector<std::thread> readers;
    for (int i = 0; i < 2; ++i) {
        readers.emplace_back([&] {
            while (!done) {
                try {
                    if (!versions.contains(contents(CacheReader(folder)))) ++wrong;
                } catch (const std::exception& error) {
                    ++wrong;
                    ADD_FAILURE() << error.what();
                }
            }
        });
    }
    for (unsigned i = 0; i < 60; ++i) write_version(folder, 1 + i % 2);
    done = true;
    for (std::thread& reader : readers) reader.join();
    EXPECT_EQ(wrong, 0);
}

TEST_F(CacheTest, ResumingKeepsFinishedShardsOfTheSameSourceOnly) {
    const std::vector<CacheStream> streams = some_streams();
    const auto start = [&](std::string fingerprint, bool resume) {
        return CacheWriter(folder, streams,
                           {.shard_bytes = 1, .fingerprint = std::move(fingerprint), .resume = resume});
    };
    {
        CacheWriter stopped = start("a", false);
        stopped.add(0, make_episode(streams, 10).rows);
        stopped.add(1, make_episode(streams, 11).rows);
        EXPECT_EQ(stopped.finished()->num_episodes(), 2);
    }
    EXPECT_THROW(CacheReader{folder}, FormatError);
    EXPECT_EQ(start("a", true).num_episodes(), 2);
    EXPECT_EQ(names_in(folder).size(), 3U);  // and the journal
    fs::remove(folder / "shard-00001-00000001.safetensors");
    write_bytes(folder / "shard-00001-00000001.safetensors", "torn");
    CacheWriter writer = start("a", true);
    EXPECT_EQ(writer.num_episodes(), 1);
    writer.add(1, make_episode(streams, 11).rows);
    writer.commit();
    EXPECT_EQ(CacheReader(folder).num_episodes(), 2);
    start("b", false).add(5, make_episode(streams, 12).rows);
    EXPECT_EQ(start("c", true).num_episodes(), 0);  // another source: its shards are gone
    EXPECT_EQ(names_in(folder), names_of(CacheReader(folder)));
}

TEST_F(CacheTest, TheChecksumIsThatOfTheRowsAlone) {
    const std::vector<CacheStream> streams = some_streams();
    const auto checksum = [&](std::uint32_t seed, std::string fingerprint) {
        CacheWriter writer(folder, streams, {.fingerprint = std::move(fingerprint)});
        writer.add(0, make_episode(streams, seed).rows);
        writer.commit();
        return CacheReader(folder).checksum();
    };
    const std::uint32_t first = checksum(10, "a");
    EXPECT_EQ(checksum(10, "b"), first);
    EXPECT_NE(checksum(11, "a"), first);
}

TEST_F(CacheTest, OneWriterAtATime) {
    CacheWriter first(folder, some_streams());
    EXPECT_THROW(CacheWriter(folder, some_streams()), FormatError);
    first.commit();
    EXPECT_THROW(first.commit(), InvalidArgument);
    EXPECT_THROW(first.add(0, std::vector<CacheRows>(3)), InvalidArgument);
    CacheWriter(folder, some_streams()).commit();
}

TEST_F(CacheTest, FilesOfOthersStayWhereTheyAreAlsoUnderNamesOfTheNextGeneration) {
    write_version(folder, 1);
    std::set<std::string> others;
    for (const char* name : {"notes.txt", "shard-1.safetensors", "shard-00000-0000000g.safetensors", "a-b.tmp",
                             "run-20240115.mcap", "shard-00000-00000002.safetensors", "episodes-00000003.parquet"}) {
        write_bytes(folder / name, "mine");
        others.insert(name);
    }
    write_version(folder, 2);
    const CacheReader reader(folder);
    EXPECT_EQ(reader.generation(), 4U);  // the first whose names are free
    std::set<std::string> names = names_of(reader);
    names.insert(others.begin(), others.end());
    EXPECT_EQ(names_in(folder), names);
    for (const std::string& name : others) EXPECT_EQ(read_bytes(folder / name), "mine");
}

TEST_F(CacheTest, AFolderWithFilesOfOthersAndNoManifestIsRefused) {
    fs::create_directory(folder);
    write_bytes(folder / "run-20240115.mcap", "mine");
    try {
        CacheWriter(folder, some_streams());
        ADD_FAILURE();
    } catch (const InvalidArgument& error) {
        EXPECT_NE(std::string(error.what()).find("run-20240115.mcap"), std::string::npos) << error.what();
    }
    EXPECT_EQ(names_in(folder), std::set<std::string>{"run-20240115.mcap"});
    fs::remove(folder / "run-20240115.mcap");
    write_bytes(folder / "manifest.json.next", "");  // of somebody else: an unfinished journal has another mode
    EXPECT_THROW(CacheWriter(folder, some_streams()), FormatError);
    EXPECT_TRUE(fs::exists(folder / "manifest.json.next"));
}

TEST_F(CacheTest, AFileThatAppearsUnderANameOfTheWriterIsNeitherOverwrittenNorRemoved) {
    const std::vector<CacheStream> streams = some_streams();
    {
        CacheWriter writer(folder, streams, {.shard_bytes = 1});
        writer.add(0, make_episode(streams, 1).rows);
        write_bytes(folder / "shard-00001-00000001.safetensors", "mine");
        EXPECT_THROW(writer.add(1, make_episode(streams, 2).rows), FormatError);
    }
    write_version(folder, 1);
    EXPECT_EQ(read_bytes(folder / "shard-00001-00000001.safetensors"), "mine");
    EXPECT_EQ(CacheReader(folder).generation(), 2U);
    {
        CacheWriter writer(root / "first", streams);
        writer.add(0, make_episode(streams, 1).rows);
        write_bytes(root / "first" / "manifest.json", "mine");
        EXPECT_THROW(writer.commit(), FormatError);
    }
    EXPECT_EQ(read_bytes(root / "first" / "manifest.json"), "mine");
}

TEST_F(CacheTest, AFolderThatIsMovedDuringAnIngestIsNotCommittedElsewhere) {
    write_version(folder, 1);
    const fs::path other = root / "other";
    write_version(other, 2);
    const std::string before = contents(CacheReader(other));
    const std::vector<CacheStream> streams = some_streams();
    CacheWriter writer(folder, streams, {.shard_bytes = 1});
    fs::rename(folder, root / "moved");
    fs::rename(other, folder);
    writer.add(0, make_episode(streams, 7).rows);
    EXPECT_THROW(writer.commit(), FormatError);
    EXPECT_EQ(contents(CacheReader(folder)), before);
    EXPECT_EQ(names_in(folder), names_of(CacheReader(folder)));
    EXPECT_EQ(CacheReader(root / "moved").generation(), 1U);
}

TEST_F(CacheTest, ResumingWithoutAFingerprintIsRefused) {
    EXPECT_THROW(CacheWriter(folder, some_streams(), {.resume = true}), InvalidArgument);
    EXPECT_FALSE(fs::exists(folder));
}

TEST_F(CacheTest, FinishedFilesAreReadOnly) {
    write_version(folder, 1);
    for (const fs::path& path : CacheReader(folder).files()) {
        if (path.filename() == "manifest.json") continue;
        EXPECT_EQ(fs::status(path).permissions() & fs::perms::all,
                  fs::perms::owner_read | fs::perms::group_read | fs::perms::others_read);
    }
}

TEST_F(CacheTest, ShardsBeyondTheLimitOfMappedFilesAreMappedWhereTheyAreRead) {
    const std::vector<CacheStream> streams = some_streams();
    const auto write = [&](unsigned seed) {
        CacheWriter writer(folder, streams, {.shard_bytes = 1});
        for (unsigned e = 0; e < 200; ++e) writer.add(e, make_episode(streams, seed + e).rows);
        writer.commit();
    };
    write(0);
    const std::string expected = contents(CacheReader(folder));
    const std::size_t limit = set_max_mapped_shards(3);
    {
        const CacheReader reader(folder);
        EXPECT_TRUE(reader.stays_mapped(2));
        EXPECT_FALSE(reader.stays_mapped(3));
        const CacheRows kept = reader.rows(190, 0);
        const std::string bytes = bytes_of(kept.values);
        EXPECT_EQ(contents(reader), expected);
        EXPECT_EQ(bytes_of(kept.values), bytes);  // its owner keeps it, though others were mapped since
        EXPECT_EQ(reader.verify(), std::vector<std::string>{});
        write(1000);
        EXPECT_NO_THROW((void)reader.rows(1, 0));
        try {
            (void)reader.rows(100, 0);
            ADD_FAILURE();
        } catch (const FormatError& error) {
            EXPECT_NE(std::string(error.what()).find("generation 1 was replaced"), std::string::npos) << error.what();
        }
    }
    set_max_mapped_shards(limit);
}

template <class Call>
std::string message_of(const Call& call) {
    try {
        call();
    } catch (const InvalidArgument& error) {
        return error.what();
    }
    return "no error";
}

TEST_F(CacheTest, BadEpisodesAreRefusedAndNotThere) {
    const std::vector<CacheStream> streams = some_streams();
    CacheWriter writer(folder, streams);
    const auto refused = [&](const auto& spoil) {
        EpisodeData episode = make_episode(streams, 3);
        spoil(episode);
        return message_of([&] { writer.add(0, episode.rows); });
    };
    ASSERT_GE(make_episode(streams, 3).times[0].size(), 2U);
    EXPECT_EQ(refused([](EpisodeData& e) { e.times[0].back() = -1; }).substr(0, 56),
              "CacheWriter::add: arm.times must not decrease, got -1 af");
    EXPECT_EQ(refused([](EpisodeData& e) { e.rows[0].values.dtype = DType::i32; }),
              "CacheWriter::add: arm.values must have dtype float32, got int32");
    EXPECT_NE(refused([](EpisodeData& e) { e.rows[0].values.shape[1] = 6; }), "no error");
    EXPECT_NE(refused([](EpisodeData& e) { e.rows[0].values.strides[0] = 8; }), "no error");
    EXPECT_NE(refused([](EpisodeData& e) { --e.rows[0].times.shape[0]; }), "no error");
    EXPECT_NE(refused([](EpisodeData& e) { e.splits[1][0] = 1; }), "no error");
    EXPECT_NE(refused([](EpisodeData& e) { e.rows[1].splits = {}; }), "no error");
    EXPECT_NE(refused([](EpisodeData& e) { e.rows.pop_back(); }), "no error");
    EXPECT_NE(refused([](EpisodeData& e) { e.rows[0].values.device = {DeviceType::cuda, 0}; }), "no error");
    EXPECT_THROW(writer.add(0, make_episode(streams, 3).rows, "[1]"), InvalidArgument);
    EXPECT_THROW(writer.add(0, make_episode(streams, 3).rows, "{\"a\":NaN}"), InvalidArgument);
    EXPECT_THROW(writer.attach("../episodes", "parquet", ""), InvalidArgument);
    EXPECT_THROW(writer.attach("shard-00000", "safetensors", ""), InvalidArgument);
    EXPECT_THROW(writer.commit("3"), InvalidArgument);
    writer.commit();
    EXPECT_EQ(CacheReader(folder).num_episodes(), 0);
}

TEST_F(CacheTest, BadStreamsAreRefusedBeforeAnythingIsWritten) {
    const CacheStream good = some_streams()[0];
    const auto with = [&](const auto& change) {
        CacheStream stream = good;
        change(stream);
        return std::vector<CacheStream>{stream};
    };
    for (const std::vector<CacheStream>& streams :
         {std::vector<CacheStream>{good, good}, with([](CacheStream& s) { s.name = ""; }),
          with([](CacheStream& s) { s.name = "a\nb"; }), with([](CacheStream& s) { s.name = "__episodes__"; }),
          with([](CacheStream& s) { s.shape = {0}; }), with([](CacheStream& s) { s.shape = {1LL << 62, 4}; }),
          with([](CacheStream& s) { s.shape.assign(8, 1); }), with([](CacheStream& s) { s.details = "{"; }),
          with([](CacheStream& s) { s.codec = "jpeg"; }), with([](CacheStream& s) {
              s.kind = "image";
              s.codec = "gif";
          })}) {
        EXPECT_THROW(CacheWriter(folder, streams), InvalidArgument);
    }
    EXPECT_THROW(CacheWriter(folder, {good}, {.shard_bytes = 0}), InvalidArgument);
    EXPECT_FALSE(fs::exists(folder));
    EXPECT_THROW(CacheWriter(folder / "deep" / "er", {good}), FormatError);
    // Text that is not UTF-8 shows when the manifest is checked, before it is written.
    CacheWriter odd(folder, {good}, {.fingerprint = "\xff"});
    EXPECT_THROW(odd.commit(), FormatError);
    EXPECT_TRUE(names_in(folder).empty());
}

TEST(Crc32cTest, KnownValuesAndBothWaysAgree) {
    EXPECT_EQ(crc32c("123456789"), 0xE3069283U);
    EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU);
    std::mt19937 random(1);
    std::string bytes(3000, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    for (std::size_t cut = 0; cut < bytes.size(); cut += 7) {
        const std::string_view head = std::string_view(bytes).substr(0, cut);
        EXPECT_EQ(crc32c(head), crc32c_table(head));
        EXPECT_EQ(crc32c(std::string_view(bytes).substr(cut), crc32c(head)), crc32c_table(bytes));
    }
}

TEST(JsonTest, GoodTextComesBack) {
    for (const std::string text :
         {"null", "true", "[]", "{}", "-0.5", "[1,2.0,1e+300,\"a\"]", "{\"a\":{\"b\":[false]}}", "9223372036854775807",
          "-9223372036854775808", "9223372036854775808", "-123456789012345678901234567890",
          "\"\\u0001\\\\\\\"/\xc3\xa4\xf0\x9f\xa4\x96\""}) {
        EXPECT_EQ(write_json(parse_json(text, "t")), text);
    }
    EXPECT_EQ(write_json(parse_json(" { \"a\" : \"\\ud83e\\udd16\\/\" } ", "t")), "{\"a\":\"\xf0\x9f\xa4\x96/\"}");
}

TEST(JsonTest, BadTextIsRefused) {
    for (const std::string text : {"",
                                   " ",
                                   "nul",
                                   "01",
                                   "-",
                                   "1.",
                                   ".5",
                                   "1e",
                                   "+1",
                                   "1e999",
                                   "NaN",
                                   "[1,]",
                                   "[1 2]",
                                   "{\"a\"}",
                                   "{\"a\":1,}",
                                   "{a:1}",
                                   "{\"a\":1,\"a\":2}",
                                   "\"",
                                   "\"\n\"",
                                   "\"\\x\"",
                                   "\"\\u12\"",
                                   "\"\\ud800\"",
                                   "\"\\ud800\\u0041\"",
                                   "\"\\udc00\"",
                                   "\"\xff\"",
                                   "\"\xc0\xaf\"",
                                   "\"\xed\xa0\x80\"",
                                   "\"\xf4\x90\x80\x80\"",
                                   "\"\xc3",
                                   "[",
                                   "{",
                                   "1 1",
                                   "'a'",
                                   "\"\\"}) {
        EXPECT_THROW((void)parse_json(text, "t"), FormatError) << text;
    }
    EXPECT_THROW((void)parse_json(std::string(1000000, '['), "t"), FormatError);
    EXPECT_THROW((void)parse_json("[1,2,3]", "t", {.depth = 4, .values = 3}), FormatError);
    EXPECT_THROW((void)parse_json(std::string(65, '[') + std::string(65, ']'), "t"), FormatError);
    EXPECT_NO_THROW((void)parse_json(std::string(64, '[') + std::string(64, ']'), "t"));
}

}  // namespace
}  // namespace robocache
