/* A language model over bytes, served token by token from what examples/serve/aot_char_lm.py wrote: no Python.

   c++ -std=c++20 -O2 -I TORCH/include aot_char_lm.cpp -o serve -L TORCH/lib -ltorch_cpu -ltorch -lc10 -ldl -Wl,-rpath,TORCH/lib
   ./serve librnn_char_lm.so char_lm.pt2 "prompt" 40

   TORCH is the folder of the package, or of libtorch. Prints the bytes that follow the prompt, one number a line. */
#include <ATen/ATen.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

namespace {

constexpr int64_t LAYERS = 2, HIDDEN = 64;

void serve(const std::string &package, const std::string &prompt, int count)
{
    const c10::InferenceMode inference;
    torch::inductor::AOTIModelPackageLoader model(package);
    at::Tensor state = at::zeros({LAYERS, 1, HIDDEN});
    // The prompt is one call, and every byte after it another.
    at::Tensor tokens = at::empty({1, static_cast<int64_t>(prompt.size())}, at::kLong);
    for (std::size_t place = 0; place < prompt.size(); place++)
        tokens[0][static_cast<int64_t>(place)] = static_cast<unsigned char>(prompt[place]);
    for (int written = 0; written < count; written++) {
        const std::vector<at::Tensor> results = model.run({tokens, state});
        state = results[1];
        tokens = results[0].select(1, -1).argmax(-1, true);
        std::printf("%d\n", static_cast<int>(tokens.item<int64_t>()));
    }
}

} // namespace

int main(int count, char **arguments)
{
    if (count != 5 || !*arguments[3]) {
        std::fputs("usage: serve LIBRARY PACKAGE PROMPT COUNT\n", stderr);
        return 2;
    }
    // It registers the operators of the model's layers, and stays loaded.
    if (!dlopen(arguments[1], RTLD_NOW)) {
        std::fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    try {
        serve(arguments[2], arguments[3], std::atoi(arguments[4]));
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    return 0;
}
