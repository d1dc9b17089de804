// SPDX-License-Identifier: MIT
// `dflash tokenize`: text to ids and back, for looking and for comparing with other tokenizers.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <iostream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "cli/command.h"
#include "io/json.h"
#include "io/tokenizer.h"

namespace dflash::cli {
namespace {

struct TokenizeArguments {
    std::string target;
    bool json = false;
    bool decode = false;
    bool plain = false;  // added tokens in the text stay text
};

std::string dump(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string encode_json_line(const Tokenizer& tokenizer, const Json& line, bool parse_added, const std::string& where) {
    if (!line.is_string()) throw_bad_input("{}: expected a JSON string", where);
    return dump({{"ids", tokenizer.encode(line.get_ref<const std::string&>(), parse_added)}});
}

std::vector<std::int32_t> ids_of(const Json& line, const std::string& where) {
    const Json wrapped = line.is_object() ? line : Json{{"ids", line}};
    std::vector<std::int32_t> ids;
    for (const std::int64_t id : json_get<std::vector<std::int64_t>>(wrapped, "ids", where)) {
        if (id < 0 || id > INT32_MAX) throw_bad_input("{}: {} is no token id", where, id);
        ids.push_back(static_cast<std::int32_t>(id));
    }
    return ids;
}

void run_json(const Tokenizer& tokenizer, const TokenizeArguments& arguments) {
    std::string text;
    for (std::int64_t number = 1; std::getline(std::cin, text); ++number) {
        if (text.empty()) continue;
        const std::string where = fmt::format("standard input line {}", number);
        const Json line = parse_json(text, where);
        if (arguments.decode) {
            fmt::print("{}\n", dump({{"text", tokenizer.decode(ids_of(line, where))}}));
        } else {
            fmt::print("{}\n", encode_json_line(tokenizer, line, !arguments.plain, where));
        }
    }
}

void run_text(const Tokenizer& tokenizer, const TokenizeArguments& arguments) {
    if (arguments.decode) {
        std::vector<std::int32_t> ids;
        for (std::string word; std::cin >> word;) {
            std::istringstream number(word);
            std::int32_t id = 0;
            if (!(number >> id) || !number.eof()) throw_bad_input("standard input: '{}' is no token id", word);
            ids.push_back(id);
        }
        fmt::print("{}", tokenizer.decode(ids));
        return;
    }
    const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
    for (const std::int32_t id : tokenizer.encode(text, !arguments.plain)) fmt::print("{:>7}  {}\n", id, dump(tokenizer.token_bytes(id)));
}

int run_tokenize(const TokenizeArguments& arguments) {
    const Tokenizer tokenizer(arguments.target);
    log_info("[tokenize] {} ids, {} merges, {} added tokens", tokenizer.vocabulary_size(), tokenizer.num_merges(),
             tokenizer.added_tokens().size());
    (arguments.json ? run_json : run_text)(tokenizer, arguments);
    return 0;
}

}  // namespace

void add_tokenize_command(CLI::App& app, Run& run) {
    CLI::App* command = app.add_subcommand("tokenize", "text on standard input to token ids, or back");
    auto arguments = std::make_shared<TokenizeArguments>();
    command->add_option("--target", arguments->target, "folder with tokenizer.json, or the file")->required();
    command->add_flag("--json", arguments->json,
                      "a JSON string a line in, {\"ids\":[...]} a line out (with --decode: ids in, {\"text\":...} out)");
    command->add_flag("--decode", arguments->decode, "ids on standard input to text");
    command->add_flag("--plain", arguments->plain, "control tokens spelt in the text stay text");
    command->footer(
        "Example:\n  echo 'def f(x):' | dflash tokenize --target fixtures/tiny-qwen3.5\n"
        "  echo '\"hello world\"' | dflash tokenize --target fixtures/tiny-qwen3.5 --json");
    command->callback([&run, arguments] { run = [arguments] { return run_tokenize(*arguments); }; });
}

}  // namespace dflash::cli
