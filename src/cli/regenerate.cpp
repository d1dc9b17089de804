// SPDX-License-Identifier: MIT
// `dflash regenerate`: the target answers the prompts of a chat file, turn by turn, so that a drafter is trained on the target's own text.
// Rows that cannot be answered are left out and counted by reason. A run that was stopped continues where it was.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>

#include "base/error.h"
#include "cli/command.h"
#include "cli/decoding_flags.h"
#include "cli/progress_line.h"
#include "cli/regenerate_file.h"
#include "data/row_error.h"
#include "generate/text_stream.h"
#include "io/atomic_file.h"

namespace dflash::cli {
namespace {

struct RegenerateFlags {
    DecodingFlags decoding;
    std::string data, out;
    bool drop_unfinished = false;
};

struct Totals {
    std::int64_t rows_in = 0, rows_out = 0, turns = 0, tokens = 0, unfinished = 0;
    std::map<std::string, std::int64_t> refused;  // reason -> rows
};

// Everything that decides what is written; also the key of the partial output.
std::string settings_key(const RegenerateFlags& flags, const ChatTemplate& chat_template) {
    const DecodingFlags& d = flags.decoding;
    return fmt::format("{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}", target_fingerprint(d.target), d.draft, flags.data, d.limit,
                       template_name(chat_template.kind), chat_template.thinking, chat_template.system, d.max_new_tokens,
                       d.sampling.temperature, d.sampling.top_k, d.sampling.top_p, d.sampling.seed, flags.drop_unfinished);
}

// Calls visit(editor) for the rows that can be answered, up to the limit of rows read; the others are counted.
template <typename Visitor>
void for_each_row(const RegenerateFlags& flags, Totals& totals, Visitor&& visit) {
    const std::int64_t limit = flags.decoding.limit;
    for_each_line(flags.data, [&](const std::string& line, const std::string& where) {
        if (limit > 0 && totals.rows_in == limit) return;
        ++totals.rows_in;
        std::unique_ptr<ChatRowEditor> editor;
        try {
            editor = std::make_unique<ChatRowEditor>(line, where);
        } catch (const RowError& error) {
            ++totals.refused[error.reason()];
            return;
        }
        visit(*editor);
    });
}

// Sizes for the longest conversation whose earlier turns are as long as they may become.
GeneratorSettings measure(const RegenerateFlags& flags, const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                          const TargetConfig& target, Totals& totals) {
    std::int64_t longest = 1;
    for_each_row(flags, totals, [&](const ChatRowEditor& editor) {
        const auto earlier = static_cast<std::int64_t>(editor.turns().size()) - 1;
        const auto prompt = render_prompt(editor.conversation(editor.turns().back()), chat_template, tokenizer);
        longest = std::max(longest, static_cast<std::int64_t>(prompt.size()) + earlier * flags.decoding.max_new_tokens);
    });
    return sizes_for(longest, flags.decoding.max_new_tokens, target);
}

class Regenerator {
public:
    Regenerator(const RegenerateFlags& flags, const ChatTemplate& chat_template, const Tokenizer& tokenizer, const GeneratorSettings& sizes)
        : flags_(flags),
          template_(chat_template),
          tokenizer_(tokenizer),
          may_reason_(chat_template.kind == TemplateKind::kQwen3 || chat_template.kind == TemplateKind::kQwen35),
          sizes_(sizes),
          setup_(decoding_options(flags.decoding, sizes)) {}

    // Answers every turn; an empty text when done, else the reason why the row cannot be used.
    std::string answer(ChatRowEditor& editor, std::int64_t row_number, Totals& totals) {
        for (const std::size_t turn : editor.turns()) {
            const std::vector<std::int32_t> prompt = render_prompt(editor.conversation(turn), template_, tokenizer_);
            if (static_cast<std::int64_t>(prompt.size()) >= sizes_.max_tokens) return "too long for the target's positions";
            GenerateSettings settings = generate_settings(flags_.decoding, setup_.target(), static_cast<std::uint64_t>(row_number));
            const GenerateResult result = setup_.generator().generate(setup_.context(), prompt, settings, setup_.draft() != nullptr);
            totals.unfinished += result.ended ? 0 : 1;
            if (!result.ended && flags_.drop_unfinished) return "unfinished answer";
            editor.set_answer(turn, output_text(tokenizer_, result.output_ids), may_reason_);
            ++totals.turns;
            totals.tokens += static_cast<std::int64_t>(result.output_ids.size());
        }
        return "";
    }

private:
    const RegenerateFlags& flags_;
    const ChatTemplate& template_;
    const Tokenizer& tokenizer_;
    bool may_reason_;  // templates without reasoning keep it in the text
    GeneratorSettings sizes_;
    DecodingSetup setup_;
};

void print_totals(const RegenerateFlags& flags, const Totals& totals) {
    fmt::print("rows in        {}\nrows out       {}\nanswered       {} turns, {} tokens in this run\n", totals.rows_in, totals.rows_out,
               totals.turns, totals.tokens);
    fmt::print("unfinished     {} answers reached --max-new-tokens {}\n", totals.unfinished, flags.decoding.max_new_tokens);
    for (const auto& [reason, count] : totals.refused) fmt::print("left out       {} rows: {}\n", count, reason);
}

int run_regenerate(const RegenerateFlags& flags) {
    apply_decoding_flags(flags.decoding);
    if (path_exists(flags.data) && !std::filesystem::is_regular_file(flags.data) && !std::filesystem::is_directory(flags.data)) {
        throw_bad_input("--data {} is no file, and it is read twice: save it to a file first", flags.data);
    }
    if (flags.decoding.max_new_tokens < 1) throw_bad_input("--max-new-tokens is 0: answers need at least 1");
    const TargetConfig target = read_target_config(flags.decoding.target);
    const Tokenizer tokenizer = read_tokenizer(flags.decoding.target);
    const ChatTemplate chat_template = resolve_chat_template(flags.decoding);
    Totals all;
    const GeneratorSettings sizes = measure(flags, chat_template, tokenizer, target, all);
    ResumableOutput output(flags.out, settings_key(flags, chat_template));
    Regenerator regenerator(flags, chat_template, tokenizer, sizes);
    if (output.rows() > 0) fmt::print(stderr, "{} rows are there from an earlier run\n", output.rows());

    Totals totals;
    ProgressLine progress("regenerate", all.rows_in, "rows", output.rows());
    for_each_row(flags, totals, [&](ChatRowEditor& editor) {
        if (output.take_done(editor.id())) return;
        const std::string reason = regenerator.answer(editor, totals.rows_in, totals);
        if (reason.empty()) {
            output.append(editor.line());
        } else {
            ++totals.refused[reason];
        }
        progress.update(totals.rows_in, fmt::format("{} tokens", totals.tokens));
    });
    totals.rows_out = output.rows();
    if (totals.rows_out == 0) {
        const std::string reason = totals.refused.empty() ? "the file is empty" : totals.refused.begin()->first;
        throw_bad_input("0 of {} rows of {} usable: {}", totals.rows_in, flags.data, reason);
    }
    output.finish();
    print_totals(flags, totals);
    return 0;
}

}  // namespace

void add_regenerate_command(CLI::App& app, Run& run) {
    CLI::App* command = app.add_subcommand("regenerate", "the target answers the prompts of a chat file");
    auto flags = std::make_shared<RegenerateFlags>();
    flags->decoding.max_new_tokens = 1024;
    add_decoding_flags(*command, flags->decoding, false);
    command->add_option("--data", flags->data, "chat JSONL whose assistant turns are written anew")->required();
    command->add_option("--out", flags->out, "JSONL to make; rows keep their shape")->required();
    command->add_flag("--drop-unfinished", flags->drop_unfinished, "leave out rows with an answer that --max-new-tokens cut off");
    command->footer(
        "Example:\n"
        "  dflash regenerate --target DIR --data chats.jsonl --out regenerated.jsonl --max-new-tokens 512\n"
        "A run that was stopped continues when the same command is given again.");
    command->callback([&run, flags] { run = [flags] { return run_regenerate(*flags); }; });
}

}  // namespace dflash::cli
