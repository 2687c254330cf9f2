"""Drop-ins beside the real packages, in host memory: equal outputs, states and gradients, and models of theirs as a whole.

The packages are those of `make test-all`; a test without its package is skipped.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
from support.everyday import one_in
from support.needed import needed

torch = pytest.importorskip("torch")

from minrnn_gen.compat import mamba_ssm, mingru_pytorch, recurrent_gemma, transformers_mamba, xlstm  # noqa: E402
from minrnn_gen.compat.installed import Exchange  # noqa: E402
from minrnn_gen.errors import BadInput, ToolchainMissing  # noqa: E402

# Sums of a few hundred products of numbers of size 1, in two orders, relative to the largest: roundoffs of the dtype.
ROUNDOFFS = 512


@pytest.fixture(autouse=True)
def _theirs_again() -> Iterator[None]:
    yield
    for drop_in in (xlstm, recurrent_gemma, transformers_mamba, mingru_pytorch):
        drop_in.uninstall()


def assert_equal(ours: Any, theirs: Any) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        one, other = one.detach(), other.detach()
        largest = max(1.0, float(other.abs().max()))
        assert float((one - other).abs().max()) <= ROUNDOFFS * torch.finfo(one.dtype).eps * largest


def gradients_of(model: Any, x: Any) -> list[Any]:
    found = [x.grad, *(parameter.grad for parameter in model.parameters())]
    return [gradient.clone() for gradient in found if gradient is not None]


def gradients_of_cell(cell: Any) -> list[Any]:
    return [cell._recurrent_kernel_int2ext(cell._recurrent_kernel_.grad), cell._bias_int2ext(cell._bias_.grad)]


def slstm_cells(function: str, dtype: Any, **options: Any) -> tuple[Any, Any]:
    """Return a cell of theirs in torch, and one that asks for their extension, with the same numbers."""
    cell = pytest.importorskip("xlstm.blocks.slstm.cell")
    xlstm.install()
    torch.manual_seed(0)
    config = {"hidden_size": 24, "num_heads": 3, "function": function, "dtype": "float32", **options}
    plain, ours = (cell.sLSTMCell(cell.sLSTMCellConfig(backend=name, **config)).to(dtype) for name in ("vanilla", "cuda"))
    for of_both in ("recurrent_kernel", "bias"):
        values = 0.5 * torch.randn(getattr(plain, of_both).shape, dtype=dtype)
        getattr(plain, of_both)[...] = values
        getattr(ours, of_both)[...] = values
    return plain, ours


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("function", ["slstm", "lstm"])
def test_an_xlstm_cell_is_theirs(function: str, dtype: Any) -> None:
    """In two pieces from drawn states, whose n is less than 1, the second of which starts where the first one ended.

    Losses are of h: c and n are known but for a factor, and gradients of that factor are left out here.
    """
    results = []
    for cell in slstm_cells(function, dtype):
        torch.manual_seed(1)
        x = torch.randn(3, 11, 4 * 24, dtype=dtype).requires_grad_()
        first, state = cell(x[:, :7], 0.1 + torch.rand(cell.config.num_states, 3, 24, dtype=dtype))
        second, last = cell(x[:, 7:], state)
        (first.sin().sum() + second.cos().sum() + last[0].sum()).backward()
        results.append([first, second, last, x.grad, *gradients_of_cell(cell)])
    assert_equal(results[1], results[0])


def test_a_stack_of_xlstm_blocks_is_theirs() -> None:
    """Outputs, gradients of all parameters, and the same outputs step by step."""
    package = pytest.importorskip("xlstm")
    xlstm.install()
    results = []
    for backend in ("vanilla", "cuda"):
        torch.manual_seed(0)
        layer = package.sLSTMLayerConfig(backend=backend, num_heads=4, conv1d_kernel_size=4, dtype="float32")
        block = package.sLSTMBlockConfig(slstm=layer, feedforward=package.FeedForwardConfig(proj_factor=1.3, act_fn="gelu"))
        config = package.xLSTMBlockStackConfig(
            slstm_block=block, context_length=16, num_blocks=2, embedding_dim=32, slstm_at=[0, 1]
        )
        model = package.xLSTMBlockStack(config).double()
        cells = [block.xlstm.slstm_cell for block in model.blocks]
        for cell in cells:  # their backends keep parameters in layouts of their own
            for of_both in (cell.recurrent_kernel, cell.bias):
                of_both[...] = 0.3 * torch.randn(of_both.shape)
        x = torch.randn(2, 16, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
        y = model(x)
        y.square().sum().backward()
        state, steps = None, []
        for x_t in x.detach().split(1, 1):
            y_t, state = model.step(x_t, state)
            steps.append(y_t)
        of_cells = [grad for cell in cells for grad in gradients_of_cell(cell)]
        others = [parameter.grad for name, parameter in model.named_parameters() if "slstm_cell" not in name]
        results.append([y, torch.cat(steps, 1), x.grad, *of_cells, *others])
    assert_equal(results[1], results[0])
    assert_equal(results[1][1:2], results[1][:1])


def test_what_no_kernel_does_is_refused() -> None:
    with pytest.raises(BadInput, match="gradient_recurrent_cut is True, which no kernel supports"):
        slstm_cells("slstm", torch.float32, gradient_recurrent_cut=True)
    with pytest.raises(BadInput, match=r"forward_clipval is 2\.0, but no kernel here bounds outputs"):
        slstm_cells("slstm", torch.float32, forward_clipval=2.0)


@pytest.mark.filterwarnings("ignore:You use TiRex with sLSTM CUDA kernels")
def test_tirexs_cell_is_theirs() -> None:
    """Theirs rounds every state to bfloat16 after every step; ours keeps all but the output in float32."""
    cell = pytest.importorskip("tirex.models.slstm.cell", exc_type=ImportError)
    pytest.importorskip("xlstm")
    xlstm.install()
    torch.manual_seed(0)
    config = cell.sLSTMBlockConfig(embedding_dim=32, num_heads=4)
    plain, ours = cell.sLSTMCell(config, "torch"), cell.sLSTMCell(config, "cuda")
    for parameter in plain.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ours.load_state_dict(plain.state_dict())
    x = torch.randn(3, 11, 128)
    with torch.no_grad():
        (y, state), (expected, expected_state) = ours(x, None), plain(x, None)
    bound = 4 * torch.finfo(torch.bfloat16).eps
    for one, other in ((y, expected), (state, expected_state)):
        assert float((one - other).abs().max()) <= bound * max(1.0, float(other.abs().max()))


def test_recurrent_gemma_is_theirs() -> None:
    """Logits, gradients, and tokens generated with the cache."""
    transformers = pytest.importorskip("transformers")
    config = transformers.RecurrentGemmaConfig(
        num_hidden_layers=3, vocab_size=97, hidden_size=32, intermediate_size=48, num_attention_heads=4, lru_width=32,
        attention_window_size=8, head_dim=8,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.RecurrentGemmaForCausalLM(config).eval()
    tokens = torch.randint(3, 90, (2, 13))
    results, generated = [], []
    for install in (recurrent_gemma.uninstall, recurrent_gemma.install):
        install()
        model.zero_grad()
        answer = model(tokens, labels=tokens, use_cache=False)
        answer.loss.backward()
        results.append([answer.logits, *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
        generated.append(model.generate(tokens, max_new_tokens=8, do_sample=False))
    assert_equal(results[1], results[0])
    assert torch.equal(*generated)


MAMBAS: dict[str, dict[str, Any]] = {
    "Mamba": {"num_hidden_layers": 2, "state_size": 8, "time_step_rank": 4},
    "FalconMamba": {"num_hidden_layers": 2, "state_size": 8, "time_step_rank": 4},
    "Jamba": {
        "num_hidden_layers": 2, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 1,
        "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8, "mamba_dt_rank": 4,
    },
    # Its attention is shared by two layers at least.
    "Zamba": {
        "num_hidden_layers": 5, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 4,
        "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8, "mamba_dt_rank": 4, "n_mamba_heads": 2,
    },
}  # fmt: skip


def mamba_model(name: str) -> Any:
    """Return a small model with weights so large that its scans count in the logits."""
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{name}Config")(vocab_size=97, hidden_size=32, **MAMBAS[name])
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize("name", one_in(4, MAMBAS))
def test_mamba_models_are_theirs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits and gradients with padding, and tokens generated with the cache, none of them by a loop of theirs."""
    model = mamba_model(name)
    calls = {"selective_scan_fn": 0, "selective_state_update": 0}

    def counted(function: str) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            calls[function] += 1
            return own(*arguments, **named)

        own = getattr(mamba_ssm, function)
        return call

    for function in calls:
        monkeypatch.setattr(mamba_ssm, function, counted(function))
    tokens = torch.randint(3, 90, (2, 13))
    mask = torch.ones_like(tokens)
    mask[0, :4] = 0
    results, generated, counts, eight = [], [], [], {"min_new_tokens": 8, "max_new_tokens": 8}
    for install in (transformers_mamba.uninstall, transformers_mamba.install):
        install()
        model.zero_grad()
        answer = model(tokens, attention_mask=mask, labels=tokens, use_cache=False)
        answer.loss.backward()
        results.append([answer.logits, *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
        generated.append(model.generate(tokens, attention_mask=mask, do_sample=False, pad_token_id=0, **eight))
        counts.append(dict(calls))
    assert_equal(results[1], results[0])
    assert torch.equal(*generated)
    scans = {"Mamba": 2, "FalconMamba": 2, "Jamba": 1, "Zamba": 2 * 5}[name]
    assert counts == [dict.fromkeys(calls, 0), {"selective_scan_fn": 2 * scans, "selective_state_update": 7 * scans}]


@pytest.mark.matrix_full
@pytest.mark.parametrize("name", ["Mamba", "FalconMamba"])
def test_tokens_from_slots_are_those_of_each_prompt_alone(name: str) -> None:
    """Requests come one by one and go when they are done, beside a row of padding; unused slots are NaN."""
    model, counts = mamba_model(name), (5, 1, 9)
    transformers_slots = needed("minrnn_gen.compat.transformers_slots")
    prompts, slots, most = [torch.randint(3, 90, (1, count)) for count in counts], (2, 0, 3), 6
    wanted = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None, "min_new_tokens": most, "max_new_tokens": most}
    expected = [model.generate(prompt, **wanted)[0, prompt.shape[1] :].tolist() for prompt in prompts]
    cache = transformers_slots.SlotCache(model, 4)
    with pytest.raises(BadInput, match="the steps of transformers have no slots; call"):
        cache.rows(torch.tensor([0]), begins=True)
    transformers_mamba.install()
    for pool in (*cache.convolutions, *cache.states):
        pool.fill_(torch.nan)
    tokens: list[list[int]] = [[], [], []]
    with torch.no_grad():
        for turn in range(len(prompts) + most):
            live = [request for request in range(len(prompts)) if 0 < len(tokens[request]) < most]
            if live:
                last = torch.tensor([[tokens[request][-1]] for request in live] + [[7]])
                rows = cache.rows(torch.tensor([*(slots[request] for request in live), -1]), begins=False)
                for request, token in zip(live, model(last, cache_params=rows).logits[:, -1].argmax(-1).tolist(), strict=False):
                    tokens[request].append(token)
            if turn < len(prompts):
                rows = cache.rows(torch.tensor([slots[turn]]), begins=True)
                tokens[turn].append(int(model(prompts[turn], cache_params=rows).logits[0, -1].argmax()))
    assert tokens == expected
    with pytest.raises(BadInput, match="a call on rows with states has several tokens"), torch.no_grad():
        model(prompts[2], cache_params=cache.rows(torch.tensor([0]), begins=False))
    assert all(pool[1].isnan().all() for pool in (*cache.convolutions, *cache.states))


def test_slots_of_models_that_do_not_fit_are_refused() -> None:
    model = mamba_model("Mamba")
    transformers_slots = needed("minrnn_gen.compat.transformers_slots")
    transformers_mamba.install()
    cache = transformers_slots.SlotCache(model, 4)
    refusals = {
        r"slots is torch.int32 \[1\]; torch.int64 \[batch\] is expected": lambda: cache.rows(torch.tensor([0]).int(), True),
        r"slots is \[0, 4\]; different slots of 0 to 3, or -1": lambda: cache.rows(torch.tensor([0, 4]), True),
        r"slots is \[1, 1\]; different slots": lambda: cache.rows(torch.tensor([1, 1]), False),
        "slots is 0; a positive integer": lambda: transformers_slots.SlotCache(model, 0),
        "a Mamba or FalconMamba model of transformers is expected": lambda: transformers_slots.SlotCache(torch.nn.ReLU(), 1),
    }
    for sentence, call in refusals.items():
        with pytest.raises(BadInput, match=sentence):
            call()


def test_mamba_models_are_exchanged_all_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    mamba = pytest.importorskip("transformers.models.mamba.modeling_mamba")
    zamba = pytest.importorskip("transformers.models.zamba.modeling_zamba")
    theirs = mamba.mamba_selective_scan
    monkeypatch.delattr(zamba, "mamba_selective_scan")
    with pytest.raises(ToolchainMissing, match="modeling_zamba has no mamba_selective_scan"):
        transformers_mamba.install()
    assert mamba.mamba_selective_scan is theirs


@pytest.mark.parametrize("name", one_in(4, MAMBAS))
def test_steps_of_mamba_models_have_the_gradients_of_the_sequence(name: str) -> None:
    model, results = mamba_model(name), []
    tokens = torch.randint(3, 90, (2, 6))
    transformers_mamba.install()
    for pieces in ([6], [3, 1, 1, 1]):
        model.zero_grad()
        outputs, cache = [], {}
        for piece in tokens.split(pieces, 1):
            answer = model(piece, use_cache=len(pieces) > 1, **cache)
            outputs.append(answer.logits)
            cache = {key: answer[key] for key in ("cache_params", "past_key_values") if answer.get(key) is not None}
        logits = torch.cat(outputs, 1)
        logits.sin().sum().backward()
        results.append([logits, *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    assert_equal(results[1], results[0])


@pytest.mark.parametrize("name", ["Mamba", "FalconMamba"])
def test_mamba_models_train_as_they_infer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever theirs calls in training."""
    model = mamba_model(name)

    def block(*_arguments: Any, **_named: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(inspect.getmodule(type(model)), "mamba_inner_fn", block)
    transformers_mamba.install()
    tokens = torch.randint(3, 90, (2, 13))
    trained, inferred = (model.train(mode)(tokens, use_cache=False).logits for mode in (True, False))
    # Before the patch is undone, which this would bring back.
    transformers_mamba.uninstall()
    assert torch.equal(trained, inferred)


def test_training_mamba_by_mamba_inner_fn_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Theirs calls it in training, where there is one."""
    modeling = pytest.importorskip("transformers.models.mamba.modeling_mamba")
    model, results, calls = mamba_model("Mamba").train(), [], []

    def fused(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        return mamba_ssm.mamba_inner_fn(*arguments, **named)

    tokens = torch.randint(3, 90, (2, 13))
    for change in (lambda: None, lambda: monkeypatch.setattr(modeling, "mamba_inner_fn", fused)):
        change()
        model.zero_grad()
        answer = model(tokens, labels=tokens)
        answer.loss.backward()
        results.append([answer.logits, *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    assert_equal(results[1], results[0])
    assert len(calls) == 2


@pytest.mark.parametrize("name", ["minGRU", "minLSTM"])
@pytest.mark.parametrize("expansion", [1.0, 1.5])
def test_mingru_pytorch_is_theirs(name: str, expansion: float) -> None:
    """Whole sequences; and pieces of them are the whole."""
    pytest.importorskip("minGRU_pytorch")
    module = pytest.importorskip(f"minGRU_pytorch.{name}")
    torch.manual_seed(0)
    model = getattr(module, name)(8, expansion_factor=expansion).double()
    results = []
    for install in (mingru_pytorch.uninstall, mingru_pytorch.install):
        install()
        model.zero_grad()
        x = torch.randn(2, 9, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
        y, last = model(x, return_next_prev_hidden=True)
        (y.sin().sum() + last.sum()).backward()
        results.append([y, last, *gradients_of(model, x)])
    assert_equal(results[1], results[0])
    first, state = model(x[:, :4], return_next_prev_hidden=True)
    token, state = model(x[:, 4:5], state, return_next_prev_hidden=True)
    assert_equal([torch.cat((first, token, model(x[:, 5:], state)), 1)], results[1][:1])


class Theirs:
    """Stands for a class of another package."""

    def forward(self) -> str:
        return "theirs"


def test_what_is_installed_is_given_back() -> None:
    exchange = Exchange(lambda: Theirs, "theirs==1.0")
    made = Theirs()
    for _ in range(2):
        exchange.install({"forward": lambda _self: "ours"})
    assert made.forward() == "ours"
    for _ in range(2):
        exchange.uninstall()
    assert made.forward() == "theirs"


def test_another_version_is_said() -> None:
    with pytest.raises(ToolchainMissing, match="Theirs has no backward: another version of its package is installed"):
        Exchange(lambda: Theirs, "theirs==1.0").install({"backward": None})

    def find() -> Any:
        raise ImportError("No module named 'theirs'")

    with pytest.raises(ToolchainMissing, match=r"\(ImportError: No module named 'theirs'\): pip install theirs==1\.0"):
        Exchange(find, "theirs==1.0").install({})
