/* A language model over bytes, served token by token: no Python, weights from a .npz file that numpy.savez wrote.

   cc -std=c99 -O2 -c DIR/rnn_char_lm.c -o kernel.o
   c++ -std=c++17 -O2 -I DIR char_lm.cpp kernel.o -o char_lm -lm -pthread
   ./char_lm weights.npz "prompt" 40

   Arrays in float32, V = 256 bytes: embedding [V, I]; weight_ih [3 H, I] and bias_ih [3 H]; weight_hh [3 H, H] and
   bias_hh [3 H]; head [V, H]. Gates in the order of the cell: reset, update, new, as torch.nn.GRU has them. */
#include "rnn_char_lm.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr std::size_t BYTES = 256, H = RNN_CHAR_LM_HIDDEN_SIZE, I = RNN_CHAR_LM_INPUT_SIZE, ROWS = RNN_CHAR_LM_GATES * H;

using Array = std::vector<float>;

// The arrays of a .npz file: a zip archive whose members are stored as they are, each a .npy file.
class Archive {
  public:
    explicit Archive(const std::string &path)
    {
        std::ifstream stream(path, std::ios::binary);
        content_.assign(std::istreambuf_iterator<char>(stream), {});
        std::size_t end = content_.size();
        while (end >= 22 && number(end - 22, 4) != 0x06054b50)
            end--;
        if (end < 22)
            throw std::runtime_error(path + " is no .npz file that can be read");
        std::size_t at = number(end - 22 + 16, 4);
        for (std::size_t left = number(end - 22 + 10, 2); left > 0; left--) {
            const std::size_t method = number(at + 10, 2), size = number(at + 24, 4), name = number(at + 28, 2);
            const std::size_t local = number(at + 42, 4);
            if (method != 0)
                throw std::runtime_error(path + " is compressed; write it by numpy.savez");
            const std::size_t data = local + 30 + number(local + 26, 2) + number(local + 28, 2);
            members_[text(at + 46, name)] = {data, size};
            at += 46 + name + number(at + 30, 2) + number(at + 32, 2);
        }
    }

    Array array(const std::string &name, std::size_t count) const
    {
        const auto found = members_.find(name + ".npy");
        if (found == members_.end())
            throw std::runtime_error(name + " is not in the file");
        const auto [data, size] = found->second;
        // 6 bytes of magic, 2 of version, the header's length, the header.
        const std::size_t begin = data + 10 + number(data + 8, 2), bytes = count * sizeof(float);
        const std::string header = text(data + 10, begin - data - 10);
        if (header.find("'<f4'") == std::string::npos || header.find("'fortran_order': False") == std::string::npos ||
            begin + bytes != data + size || begin + bytes > content_.size())
            throw std::runtime_error(name + " has another dtype, order or size than the model");
        Array values(count);
        std::memcpy(values.data(), content_.data() + begin, bytes);
        return values;
    }

  private:
    struct Member {
        std::size_t data, size;
    };

    std::size_t number(std::size_t at, int bytes) const
    {
        std::size_t value = 0;
        for (int byte = bytes - 1; byte >= 0; byte--)
            value = value << 8 | static_cast<unsigned char>(content_.at(at + static_cast<std::size_t>(byte)));
        return value;
    }

    std::string text(std::size_t at, std::size_t length) const
    {
        if (at + length > content_.size())
            throw std::runtime_error("the file is cut off");
        return std::string(content_.data() + at, length);
    }

    std::vector<char> content_;
    std::map<std::string, Member> members_;
};

void must_be(int code)
{
    if (code != RNN_CHAR_LM_OK)
        throw std::runtime_error(rnn_char_lm_message());
}

// The model: its weights, its state, and the kernel that advances it.
class Model {
  public:
    explicit Model(const Archive &weights)
        : embedding_(weights.array("embedding", BYTES * I)), weight_(weights.array("weight_ih", ROWS * I)),
          bias_(weights.array("bias_ih", ROWS)), R_(weights.array("weight_hh", ROWS * H)),
          recurrent_bias_(weights.array("bias_hh", ROWS)), head_(weights.array("head", BYTES * H)), state_(H), y_(H)
    {
        rnn_char_lm *kernel = nullptr;
        must_be(rnn_char_lm_create(&kernel, 1));
        kernel_.reset(kernel);
        call_.batch = 1;
        call_.weight = weight_.data();
        call_.bias = bias_.data();
        call_.R = R_.data();
        call_.recurrent_bias = recurrent_bias_.data();
        call_.initial_h = call_.final_h = state_.data(); // a step advances the state in place
        call_.y = y_.data();
        const auto bytes = rnn_char_lm_workspace_bytes(kernel, &call_, RNN_CHAR_LM_STEP);
        must_be(bytes < 0 ? static_cast<int>(-bytes) : RNN_CHAR_LM_OK);
        workspace_.resize(static_cast<std::size_t>(bytes));
    }

    // The most probable byte behind this one.
    std::size_t next(std::size_t byte)
    {
        call_.x = embedding_.data() + byte * I;
        must_be(rnn_char_lm_step(kernel_.get(), &call_, workspace_.data(), static_cast<int64_t>(workspace_.size()), nullptr));
        std::array<float, BYTES> logits{};
        for (std::size_t candidate = 0; candidate < BYTES; candidate++)
            for (std::size_t unit = 0; unit < H; unit++)
                logits[candidate] += head_[candidate * H + unit] * y_[unit];
        return static_cast<std::size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    }

  private:
    struct Destroy {
        void operator()(rnn_char_lm *kernel) const { rnn_char_lm_destroy(kernel); }
    };

    Array embedding_, weight_, bias_, R_, recurrent_bias_, head_, state_, y_;
    std::unique_ptr<rnn_char_lm, Destroy> kernel_;
    rnn_char_lm_call call_{};
    std::vector<unsigned char> workspace_;
};

} // namespace

int main(int count, char **arguments)
try {
    if (count != 4)
        throw std::runtime_error("usage: char_lm WEIGHTS.npz PROMPT TOKENS");
    Model model{Archive(arguments[1])};
    std::size_t token = 0;
    for (const char *at = arguments[2]; *at; at++)
        token = model.next(static_cast<unsigned char>(*at));
    for (long left = std::strtol(arguments[3], nullptr, 10); left > 0; left--) {
        std::printf("%zu\n", token);
        token = model.next(token);
    }
} catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
