// SPDX-License-Identifier: MIT
// The packed forward against goldens of both bundled targets, against a double reference of every family, and against itself: documents in
// a pack equal themselves alone.
#include "target/target_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "io/safetensors.h"
#include "kernels/linear.h"
#include "support/close.h"
#include "support/data.h"
#include "support/errors.h"
#include "support/temporary_folder.h"
#include "target/loaded_target.h"
#include "target/toy_target.h"
#include "tensor/buffer.h"

namespace dflash {
namespace {

using namespace dflash::testing;  // NOLINT: test helpers

const std::string kFixtures = DFLASH_FIXTURES;

std::vector<std::int64_t> all_taps(std::int64_t layers) {
    std::vector<std::int64_t> taps(static_cast<std::size_t>(layers) + 1);
    std::iota(taps.begin(), taps.end(), -1);
    return taps;
}

TargetForwardSettings everything(const std::string& folder, std::int64_t max_tokens) {
    return {max_tokens, all_taps(read_target_config(folder).layers), true};
}

Ids random_ids(std::int64_t n, std::int64_t vocabulary, std::uint64_t seed) {
    Philox rng(seed, 3);
    Ids ids;
    for (std::int64_t i = 0; i < n; ++i) ids.push_back(static_cast<std::int32_t>(rng.next_below(static_cast<std::uint64_t>(vocabulary))));
    return ids;
}

HostBuffer logits_of(const LoadedTarget& target, const Tensor& final_state) {
    HostBuffer logits = poisoned_f32({final_state.rows(), target.config.vocabulary});
    linear_forward(target.context, {final_state, target.weights.head, logits});
    return logits;
}

std::vector<float> rows_of(const std::vector<float>& all, std::int64_t columns, std::int64_t begin, std::int64_t count) {
    return {all.begin() + begin * columns, all.begin() + (begin + count) * columns};
}

template <typename A, typename B>
::testing::AssertionResult close_vectors(const std::vector<A>& got, const std::vector<B>& ref, Tolerance tolerance) {
    return close(std::span<const A>(got), std::span<const B>(ref), tolerance);
}

class Golden : public ::testing::TestWithParam<std::string> {
protected:
    Golden() : file(kFixtures + "/golden/" + GetParam() + ".safetensors") {}
    std::vector<float> floats(const std::string& name) const {
        const SafetensorsEntry* entry = file.find(name);
        EXPECT_NE(entry, nullptr) << name;
        const auto* values = reinterpret_cast<const float*>(entry->data);
        return {values, values + entry->elements()};
    }
    std::vector<std::int32_t> integers(const std::string& name) const {
        const SafetensorsEntry* entry = file.find(name);
        EXPECT_NE(entry, nullptr) << name;
        std::vector<std::int32_t> values;
        for (std::int64_t i = 0; i < entry->elements(); ++i) {
            values.push_back(entry->dtype == "I64" ? static_cast<std::int32_t>(reinterpret_cast<const std::int64_t*>(entry->data)[i])
                                                   : reinterpret_cast<const std::int32_t*>(entry->data)[i]);
        }
        return values;
    }
    SafetensorsFile file;
};

// All golden documents in one packed batch; each golden was made from its document alone.
TEST_P(Golden, EveryLayerAndTheArgmaxAgree) {
    const std::string folder = kFixtures + "/" + GetParam();
    std::vector<Ids> documents;
    for (int i = 0; i < 3; ++i) documents.push_back(integers(fmt::format("{}.input_ids", i)));
    const PackedBatch batch = packed_batch(documents);
    LoadedTarget target(folder, everything(folder, batch.tokens()), {});
    const TargetFeatures features = target.model->forward(target.context, batch);
    const std::int64_t hidden = target.config.hidden;
    const HostBuffer logits = logits_of(target, features.final_state);
    for (int i = 0; i < 3; ++i) {
        const std::int64_t begin = batch.document_begin[static_cast<std::size_t>(i)];
        const std::int64_t rows = std::ssize(documents[static_cast<std::size_t>(i)]);
        for (std::int64_t layer = 0; layer < target.config.layers; ++layer) {
            const auto got = rows_of(tap_of(features.taps, layer, hidden), hidden, begin, rows);
            EXPECT_TRUE(close_vectors(got, floats(fmt::format("{}.hidden.{}", i, layer)), kModelF32))
                << "document " << i << " entry " << layer;
        }
        const Tensor final_state = features.final_state.slice_rows(begin, rows);
        const auto golden_final = floats(fmt::format("{}.hidden.{}", i, target.config.layers));
        EXPECT_TRUE(close(f32_span(final_state), std::span<const float>(golden_final), kModelF32)) << "document " << i;

        const Tensor own = logits.tensor().slice_rows(begin, rows);
        const auto golden_argmax = integers(fmt::format("{}.argmax", i));
        ASSERT_EQ(std::ssize(golden_argmax), rows);
        std::vector<double> logsumexp;
        for (std::int64_t row = 0; row < rows; ++row) {
            const float* z = own.f32() + row * target.config.vocabulary;
            EXPECT_EQ(argmax(z, target.config.vocabulary), golden_argmax[static_cast<std::size_t>(row)])
                << "document " << i << " row " << row;
            double sum = 0;
            for (std::int64_t v = 0; v < target.config.vocabulary; ++v) sum += std::exp(static_cast<double>(z[v]));
            logsumexp.push_back(std::log(sum));
        }
        EXPECT_TRUE(close_vectors(logsumexp, floats(fmt::format("{}.logsumexp", i)), kModelF32));
        const auto tail = floats(fmt::format("{}.logits_tail", i));
        const std::int64_t tail_rows = std::ssize(tail) / target.config.vocabulary;
        EXPECT_TRUE(close(f32_span(own.slice_rows(rows - tail_rows, tail_rows)), std::span<const float>(tail), kModelF32));
    }
}

INSTANTIATE_TEST_SUITE_P(Targets, Golden, ::testing::Values("tiny-qwen3", "tiny-qwen3.5"),
                         [](const auto& test) { return test.param == "tiny-qwen3" ? "Qwen3" : "Hybrid"; });

class Packed : public ::testing::TestWithParam<std::string> {};

TEST_P(Packed, DocumentsEqualThemselvesAlone) {
    const std::string folder = kFixtures + "/" + GetParam();
    LoadedTarget target(folder, everything(folder, 256), {});
    std::vector<Ids> documents;
    for (const std::int64_t n : {1, 63, 3, 64, 65, 1, 9}) documents.push_back(random_ids(n, 4000, static_cast<std::uint64_t>(n)));
    const PackedBatch batch = packed_batch(documents);
    const TargetFeatures together = target.model->forward(target.context, batch);
    const std::vector<float> taps(together.taps.f32(), together.taps.f32() + together.taps.elements());
    const std::vector<float> final_state(together.final_state.f32(), together.final_state.f32() + together.final_state.elements());
    for (std::size_t i = 0; i < documents.size(); ++i) {
        const std::int64_t begin = batch.document_begin[i], rows = std::ssize(documents[i]);
        const TargetFeatures alone = target.model->forward(target.context, packed_batch({documents[i]}));
        const auto packed_taps = rows_of(taps, together.taps.row_elements(), begin, rows);
        EXPECT_TRUE(close(f32_span(alone.taps), std::span<const float>(packed_taps), kChunkF32)) << rows << " tokens";
        const auto packed_final = rows_of(final_state, target.config.hidden, begin, rows);
        EXPECT_TRUE(close(f32_span(alone.final_state), std::span<const float>(packed_final), kChunkF32)) << rows << " tokens";
    }
}

// Other tokens in front change nothing behind: conv window, state and attention all start over, to the bit.
TEST_P(Packed, EarlierDocumentsDoNotLeak) {
    const std::string folder = kFixtures + "/" + GetParam();
    LoadedTarget target(folder, everything(folder, 128), {});
    const Ids second = random_ids(9, 4000, 2);
    std::vector<float> first_run;
    for (const std::uint64_t seed : {11U, 12U}) {
        const TargetFeatures features = target.model->forward(target.context, packed_batch({random_ids(5, 4000, seed), second}));
        const Tensor own = features.taps.slice_rows(5, 9);
        const std::vector<float> values(own.f32(), own.f32() + own.elements());
        if (first_run.empty()) {
            first_run = values;
        } else {
            EXPECT_EQ(values, first_run);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Targets, Packed, ::testing::Values("tiny-qwen3", "tiny-qwen3.5"),
                         [](const auto& test) { return test.param == "tiny-qwen3" ? "Qwen3" : "Hybrid"; });

// Every state of every layer of a toy checkpoint against the reference in double.
void expect_reference(const ToyTarget& toy, const std::string& folder) {
    LoadedTarget target(folder, everything(folder, 128), {});
    const std::vector<Ids> documents = {random_ids(67, 97, 1), random_ids(2, 97, 2), random_ids(30, 97, 3)};
    const PackedBatch batch = packed_batch(documents);
    const TargetFeatures features = target.model->forward(target.context, batch);
    const HostBuffer logits = logits_of(target, features.final_state);
    const std::int64_t hidden = target.config.hidden;
    for (std::size_t i = 0; i < documents.size(); ++i) {
        const std::int64_t begin = batch.document_begin[i], rows = std::ssize(documents[i]);
        const auto expected = toy::Reference(toy).run(documents[i]);
        const auto flat = [](const toy::Rows& state) {
            std::vector<double> all;
            for (const auto& row : state) all.insert(all.end(), row.begin(), row.end());
            return all;
        };
        for (std::int64_t entry = 0; entry <= target.config.layers; ++entry) {
            const auto got = rows_of(tap_of(features.taps, entry, hidden), hidden, begin, rows);
            EXPECT_TRUE(close_vectors(got, flat(expected[static_cast<std::size_t>(entry)]), kModelF32))
                << "document " << i << " entry " << entry;
        }
        const auto states = static_cast<std::size_t>(target.config.layers) + 1;
        EXPECT_TRUE(close(features.final_state.slice_rows(begin, rows), flat(expected[states]), kModelF32)) << "document " << i;
        EXPECT_TRUE(close(logits.tensor().slice_rows(begin, rows), flat(expected[states + 1]), kModelF32)) << "document " << i;
    }
}

class Toy : public ::testing::TestWithParam<toy::Kind> {
protected:
    TemporaryFolder folder;
};

TEST_P(Toy, MatchesTheDoubleReference) {
    const ToyTarget toy = make_toy_target(GetParam());
    save_toy_target(toy, folder.path());
    expect_reference(toy, folder.path());
}

// A large eps from the config must reach every norm.
TEST_P(Toy, EveryNormUsesTheConfiguredEps) {
    ToyTarget toy = make_toy_target(GetParam());
    toy.config["rms_norm_eps"] = 0.3;
    save_toy_target(toy, folder.path());
    expect_reference(toy, folder.path());
}

TEST_P(Toy, TapsNameOutputsOfLayers) {
    const ToyTarget toy = make_toy_target(GetParam());
    save_toy_target(toy, folder.path());
    const Ids ids = random_ids(20, 97, 4);
    LoadedTarget few(folder.path(), TargetForwardSettings{32, {0, 1, 3}, false}, {});
    EXPECT_EQ((TargetForwardSettings{32, {0, 1, 3}, false}.layers_to_run(few.config)), 4);
    const TargetFeatures features = few.model->forward(few.context, packed_batch({ids}));
    EXPECT_FALSE(features.final_state.defined());
    const auto expected = toy::Reference(toy).run(ids);
    const std::int64_t layers[] = {0, 1, 3};
    for (std::int64_t k = 0; k < 3; ++k) {
        std::vector<double> flat;
        for (const auto& row : expected[static_cast<std::size_t>(layers[k]) + 1]) flat.insert(flat.end(), row.begin(), row.end());
        EXPECT_TRUE(close_vectors(tap_of(features.taps, k, few.config.hidden), flat, kModelF32)) << layers[k];
    }
}

INSTANTIATE_TEST_SUITE_P(Families, Toy, ::testing::Values(toy::Kind::kQwen3, toy::Kind::kHybrid, toy::Kind::kLlama3), [](const auto& test) {
    return test.param == toy::Kind::kQwen3 ? "Qwen3" : test.param == toy::Kind::kHybrid ? "Hybrid" : "Llama3";
});

TEST(ToyHybrid, NestedConfigAndPrefixedNamesGiveTheSameBits) {
    const TemporaryFolder flat, nested;
    const ToyTarget toy = make_toy_target(toy::Kind::kHybrid);
    save_toy_target(toy, flat.path());
    save_toy_target(toy, nested.path(), ToyLayout::kVisionLanguage);
    const PackedBatch batch = packed_batch({random_ids(30, 97, 3)});
    LoadedTarget a(flat.path(), everything(flat.path(), 32), {});
    LoadedTarget b(nested.path(), everything(nested.path(), 32), {});
    EXPECT_TRUE(same_bits(a.model->forward(a.context, batch).taps, b.model->forward(b.context, batch).taps));
}

// Zero layer norms mean identity gain in the hybrid family, the gated norm is stored plainly.
TEST(ToyHybrid, ZeroNormsAreIdentityGains) {
    const TemporaryFolder folder;
    ToyTarget toy = make_toy_target(toy::Kind::kHybrid);
    for (auto& [name, tensor] : toy.tensors) {
        const bool gated = name.find("linear_attn.norm") != std::string::npos;
        const bool is_norm = name.find("norm.weight") != std::string::npos || name.find("layernorm") != std::string::npos;
        if (is_norm) std::fill(tensor.values.begin(), tensor.values.end(), gated ? 1.0F : 0.0F);
    }
    save_toy_target(toy, folder.path());
    expect_reference(toy, folder.path());
}

TEST(TargetModel, EmptyBatchAndEmptyDocument) {
    const TemporaryFolder folder;
    save_toy_target(make_toy_target(toy::Kind::kHybrid), folder.path());
    LoadedTarget target(folder.path(), everything(folder.path(), 32), {});
    EXPECT_EQ(target.model->forward(target.context, packed_batch({})).taps.rows(), 0);
    const Ids ids = random_ids(8, 97, 1);
    const Tensor taps = target.model->forward(target.context, packed_batch({{}, ids, {}})).taps;
    const std::vector<float> values(taps.f32(), taps.f32() + taps.elements());
    const Tensor alone = target.model->forward(target.context, packed_batch({ids})).taps;
    EXPECT_EQ(values, std::vector<float>(alone.f32(), alone.f32() + alone.elements()));
}

TEST(TargetModel, RefusesBatchesThatContradictThemselves) {
    const TemporaryFolder folder;
    save_toy_target(make_toy_target(toy::Kind::kQwen3), folder.path());
    LoadedTarget target(folder.path(), everything(folder.path(), 16), {});
    const PackedBatch good = packed_batch({random_ids(4, 97, 1), random_ids(5, 97, 2)});
    PackedBatch batch = good;
    batch.position[5] = 5;
    EXPECT_THROW(target.model->forward(target.context, batch), Error);
    batch = good;
    batch.document[3] = 1;
    EXPECT_THROW(target.model->forward(target.context, batch), Error);
    batch = good;
    batch.document_begin[1] = 5;
    EXPECT_THROW(target.model->forward(target.context, batch), Error);
    EXPECT_THROW(target.model->forward(target.context, packed_batch({random_ids(17, 97, 1)})), Error);
    EXPECT_NO_THROW(target.model->forward(target.context, good));
}

}  // namespace
}  // namespace dflash
