"""Pictures for a model that sees: their tokens, features and positions, whatever its family.

The id of a picture's token is its hash (:attr:`.Picture.number`), which ``ChatFormat.encode`` and ``plain_ids`` write
into prompts, until a model computes: the engine's cache and ``policies.local.hidden_states`` replace it by the image
token and the features (``embedded``); vLLM gets the files.

A family of models is a subclass of :class:`VisionFamily`, which a package names in the entry point group
``rollenv.vision`` under transformers' ``model_type``. rollenv's own are in ``plugins/vision``.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from packaging.version import Version
from torch import Tensor
from transformers import AutoImageProcessor
from transformers.utils import cached_file

from rollenv.agents.engines.base import Ids, vision_of
from rollenv.agents.engines.token_cache import Remembered
from rollenv.core.errors import UsageError
from rollenv.core.pictures import Picture, numbered
from rollenv.core.plugins import entry_points, load

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

#: The entry point group of families.
GROUP = "rollenv.vision"

#: The first release of transformers that gives the features and positions of pictures as they are read here.
NEEDED = "5.18"

#: The processor's files beside a model, kept with its checkpoints: they pin how pictures are resized.
FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")

#: Bounds of the caches: bytes of processed pictures, and arrangements of pictures and texts.
_MOST_BYTES = 1 << 28
_MOST_ARRANGEMENTS = 4096

#: Names of the vision part's modules, with the projection to the language model.
_VISION_PARTS = ("visual", "vision_tower", "vision_model", "connector", "multi_modal_projector")


@dataclass(slots=True)
class Sight:
    """Where the pictures are in a sequence of tokens."""

    places: NDArray[np.int64]
    """(L,) the number of each token within its picture; -1 for texts."""
    rope: NDArray[np.int64] | None
    """(3, L) positions for M-RoPE (arXiv 2409.12191, section 2.1); None if tokens are simply counted."""
    last: NDArray[np.int64] | None = None
    """(L,) the position of the last token that each attends to; None if that is its own."""

    def whole(self, length: int) -> int:
        """Return the length of a prefix without the beginning of a picture whose tokens attend to each other."""
        if self.last is None or not length:
            return length
        cut = np.flatnonzero(self.last[:length] >= length)
        return int(cut[0]) if len(cut) else length

    def part(self, begin: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
        """Return places and positions of tokens, which may be texts after the known ones."""
        places, rope = self.places[begin:end], self.rope
        if (more := end - max(begin, len(self.places))) > 0:
            places = np.concatenate([places, np.full(more, -1)])
        if rope is not None:
            known, last = rope.shape[1], int(rope[:, -1].max())
            after = np.arange(max(begin, known), end) - known + 1 + last
            rope = np.concatenate([rope[:, begin:end], np.broadcast_to(after, (3, len(after)))], 1)
        return places, rope


class VisionFamily:
    """Pictures as tokens and features, as a model's own processor makes them. A subclass is a family of models.

    Args:
        image_processor: the one of transformers that the model was trained with.
        config: the model's.
        settings: of the processor (``processor_config.json``).
        files: contents of the processor's files by name, for :meth:`save`.
    """

    mark: ClassVar[str] = "<image>"
    """The text of chat templates for a picture."""
    around: ClassVar[str] = "{}"
    """The text around the mark there."""
    words: ClassVar[Mapping[str, str]] = {"image_token": "<image>"}
    """Texts of tokens, under the names by which the tokenizer or ``processor_config.json`` may have others:
    ``image_token`` stands for a part of a picture."""
    processing: ClassVar[Mapping[str, Any]] = {}
    """Further arguments of the image processor."""
    mutual: ClassVar[bool] = False
    """True if the tokens of a picture attend to those of it that follow."""

    def __init__(
        self,
        image_processor: Any,
        tokenizer: PreTrainedTokenizerBase,
        config: PreTrainedConfig,
        settings: Mapping[str, Any] | None = None,
        files: Mapping[str, str] | None = None,
    ):
        self.config, self.files, self.image_processor = config, dict(files or {}), image_processor
        self.token: int = config.image_token_id
        own = {name: getattr(tokenizer, name, None) or text for name, text in self.words.items()}
        self.settings: dict[str, Any] = {**own, **(settings or {})}
        self.image_token: str = self.settings["image_token"]
        if tokenizer.convert_tokens_to_ids(self.image_token) != self.token:
            raise UsageError(f"the tokenizer's {self.image_token} has not the id {self.token} of the model's")
        #: Texts of tokens that a template or a processor writes for pictures.
        self.literals = {self.mark, self.image_token}
        self._ids = [_alone(tokenizer, part) for part in self.around.split("{}")]
        self._forget()

    # -- a family ----------------------------------------------------------------------------------------------------

    def expanded(self, inputs: Mapping[str, Tensor]) -> str:
        """Return the text that the family's processor puts in the place of the mark. It follows a picture's size.

        Args:
            inputs: what the image processor makes of the picture.
        """
        raise NotImplementedError

    def features(self, model: PreTrainedModel, pictures: Sequence[Picture]) -> list[list[Tensor]]:
        """Return features (tokens, width) of pictures: a list for the embeddings, then one for each deeper layer."""
        look, found = body_that_sees(model).get_image_features, []
        for inputs in map(self.inputs, pictures):
            how = {name: value.to(model.device) for name, value in inputs.items() if name.startswith("pixel_")}
            found.append(torch.cat([part.flatten(0, -2) for part in look(**how, return_dict=True).pooler_output]))
        return [found]

    def positions(
        self, model: PreTrainedModel, kinds: NDArray[np.int64], pictures: Sequence[Picture]
    ) -> NDArray[np.int64] | None:
        """Return the positions (3, L) that the model computes itself; None if it counts tokens.

        Args:
            kinds: (L,) 1 for tokens of pictures, 0 for texts, up to the last token of a picture.
            pictures: those shown, in their order.
        """
        return None

    def arguments(
        self, model: PreTrainedModel, texts: Tensor, shown: Tensor, features: Sequence[Tensor]
    ) -> dict[str, Any]:
        """Return the arguments of forward() for tokens of texts and pictures.

        Args:
            texts: (rows, columns) token ids, 0 where pictures are.
            shown: (rows, columns) True where pictures are.
            features: for the embeddings and each deeper layer, (shown tokens, width).
        """
        embeddings = model.get_input_embeddings()(texts)
        return {"inputs_embeds": embeddings.masked_scatter(shown[..., None], features[0].to(embeddings))}

    # -- copies and files --------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        self._inputs = Remembered(self._processed, _MOST_BYTES)
        self._layouts: OrderedDict[tuple[int, int], tuple[str, int, dict[str, Tensor]]] = OrderedDict()
        self._rope: OrderedDict[Any, NDArray[np.int64] | None] = OrderedDict()

    def __deepcopy__(self, memo: Any) -> VisionFamily:
        return self

    def __getstate__(self) -> dict[str, Any]:
        caches = ("_inputs", "_layouts", "_rope")
        return {name: value for name, value in vars(self).items() if name not in caches}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def save(self, folder: str | Path) -> None:
        """Write the processor's files beside a model."""
        for name, text in self.files.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        if not self.files:
            self.image_processor.save_pretrained(folder)
            Path(folder, FILES[1]).write_text(json.dumps(self.settings, indent=2) + "\n", encoding="utf-8")

    # -- tokens ------------------------------------------------------------------------------------------------------

    def written(self, picture: Picture) -> str:
        """Return the text that the processor puts in the place of a template's mark of this picture."""
        return self.layout(picture)[0]

    def count(self, picture: Picture) -> int:
        """Return the number of tokens that are this picture's, apart from marks around it."""
        return self.layout(picture)[1]

    def patches(self, picture: Picture) -> float:
        """Return the number of patches that the vision part reads of a picture."""
        vision = self.config.vision_config
        colours = 3 * np.prod(np.broadcast_to(vision.patch_size, 2)) * getattr(vision, "temporal_patch_size", 1)
        return float(self.inputs(picture)["pixel_values"].numel() / colours)

    def tokens(self, picture: Picture, encode: Callable[[str], Sequence[int]]) -> Ids:
        """Return the tokens of a picture in a prompt without a chat template."""
        before, after = self._ids
        return (*before, *self.marked(encode(self.written(picture)), [picture]), *after)

    def marked(self, ids: Sequence[int], pictures: Sequence[Picture]) -> list[int]:
        """Replace the tokens of pictures, in their order, by ids of their own (``picture.number``)."""
        own = [picture.number for picture in pictures for _ in range(self.count(picture))]
        if len(own) != sum(token == self.token for token in ids):
            raise UsageError(
                f"a prompt has {sum(token == self.token for token in ids)} tokens of pictures where its "
                f"{len(pictures)} pictures have {len(own)}: {', '.join(map(repr, pictures)):.200}"
            )
        left = iter(own)
        return [next(left) if token == self.token else token for token in ids]

    def layout(self, picture: Picture) -> tuple[str, int, dict[str, Tensor]]:
        """Return what follows a picture's size: the processor's text, its number of tokens, inputs besides pixels."""
        size = picture.width, picture.height
        if size not in self._layouts:
            inputs = self.inputs(picture)
            text = self.expanded(inputs)
            rest = {name: value for name, value in inputs.items() if not name.startswith("pixel_")}
            if not (count := text.count(self.image_token)):
                raise UsageError(
                    f"{type(self).__name__}.expanded() has no {self.image_token} for {picture!r}: {text!r}"
                )
            self._layouts[size] = text, count, rest
            if len(self._layouts) > _MOST_ARRANGEMENTS:
                self._layouts.popitem(last=False)
        return self._layouts[size]

    # -- what a model reads ------------------------------------------------------------------------------------------

    def inputs(self, picture: Picture) -> dict[str, Tensor]:
        """Return what the image processor makes of a picture; cached."""
        return self._inputs(picture.number)

    def _processed(self, number: int) -> dict[str, Tensor]:
        picture = numbered(number)
        try:
            with torch.inference_mode(False):  # what is kept is for training too
                made = self.image_processor(images=[picture.array()], return_tensors="pt", **self.processing)
        except ValueError as error:
            raise UsageError(f"the model's image processor refuses {picture!r}: {error}") from error
        return {name: torch.as_tensor(value) for name, value in made.items()}

    def look(self, model: PreTrainedModel, ids: Sequence[int] | NDArray[np.int64]) -> Sight | None:
        """Find the pictures in all tokens of a sequence; None if it has none.

        Raises:
            UsageError: a picture has not the tokens that its features need.
        """
        array = np.asarray(ids, np.int64)
        at = np.flatnonzero(array >> 62 == 1)
        if not len(at):
            return None
        places = np.full(len(array), -1)
        for number in dict.fromkeys(array[at].tolist()):
            own = np.flatnonzero(array == number)
            count = self.count(numbered(number))
            if len(own) % count:
                raise UsageError(f"a prompt has {len(own)} tokens of {numbered(number)!r}, which has {count}")
            places[own] = np.arange(len(own)) % count
        last = None
        if self.mutual:
            last = np.arange(len(array))
            for block in np.split(at, np.flatnonzero(np.diff(at) > 1) + 1):
                last[block] = block[-1]
        return Sight(places, self._positions(model, array, places), last)

    def _positions(
        self, model: PreTrainedModel, ids: NDArray[np.int64], places: NDArray[np.int64]
    ) -> NDArray[np.int64] | None:
        kinds = (places >= 0).astype(np.int64)
        kinds = kinds[: int(np.flatnonzero(kinds)[-1]) + 1]
        shown = [numbered(number) for number in ids[places == 0].tolist()]
        key = kinds.tobytes(), *((picture.width, picture.height) for picture in shown)
        if key not in self._rope:
            self._rope[key] = self.positions(model, kinds, shown)
            if len(self._rope) > _MOST_ARRANGEMENTS:
                self._rope.popitem(last=False)
        return self._rope[key]

    def embedded(
        self, model: PreTrainedModel, ids: Tensor, places: Tensor | None, known: dict[int, list[Tensor]] | None = None
    ) -> dict[str, Any]:
        """Return the arguments of a model's forward() for tokens with pictures, or for a part of them.

        A model may have sampled the vocabulary's token for pictures. It is of none, and read as token 0.

        Args:
            ids: (rows, columns) token ids, of pictures too.
            places: (rows, columns) of each token within its picture, -1 for texts; None without pictures.
            known: features by picture, to look up and to add to.
        """
        texts = ids.masked_fill(ids == self.token, 0)
        if places is None or not (shown := places >= 0).any():
            return {"input_ids": texts}
        numbers, of = torch.unique(ids[shown], return_inverse=True)
        pictures = [numbered(number) for number in numbers.tolist()]
        features = {} if known is None else known
        if new := [picture for picture in pictures if picture.number not in features]:
            with torch.set_grad_enabled(torch.is_grad_enabled() and trains_vision(model)):
                made = zip(*self.features(model, new), strict=True)
            for picture, levels in zip(new, made, strict=True):
                if {*map(len, levels)} != {self.count(picture)}:
                    raise UsageError(
                        f"{type(self).__name__} has {self.count(picture)} tokens for {picture!r}, and the model "
                        f"{' and '.join(str(len(level)) for level in levels)} features"
                    )
                features[picture.number] = list(levels)
        counts = torch.tensor([self.count(picture) for picture in pictures])
        begins = (counts.cumsum(0) - counts).to(ids.device)
        index = begins[of] + places[shown]
        table = [torch.cat(level)[index] for level in zip(*(features[p.number] for p in pictures), strict=True)]
        return self.arguments(model, texts.masked_fill(shown, 0), shown, table)


def _alone(tokenizer: PreTrainedTokenizerBase, token: str) -> Ids:
    return tuple(tokenizer.encode(token, add_special_tokens=False)) if token else ()


def body_that_sees(model: PreTrainedModel) -> Any:
    """Return the part of a model that has its vision part."""
    return model if any(hasattr(model, name) for name in _VISION_PARTS) else getattr(model, "model", model)


def vision_parts(model: PreTrainedModel) -> dict[str, torch.nn.Module]:
    """Return a model's parts that only pictures pass, by name; none for a model of texts."""
    base = body_that_sees(model)
    prefix = "" if base is model else "model."
    return {f"{prefix}{name}": part for name in _VISION_PARTS if (part := getattr(base, name, None)) is not None}


def trains_vision(model: PreTrainedModel) -> bool:
    """Return whether a weight of the vision part is trained."""
    return any(p.requires_grad for part in vision_parts(model).values() for p in part.parameters())


def require_transformers() -> None:
    """Refuse releases of transformers that are older than what models that see need."""
    if Version(transformers.__version__) < Version(NEEDED):
        raise UsageError(
            f"models that see need transformers {NEEDED} or newer, and {transformers.__version__} is installed: "
            f"pip install --upgrade 'transformers>={NEEDED}'"
        )


def load_vision(
    path: str, tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig, how: Mapping[str, Any]
) -> VisionFamily | None:
    """Load the processor beside a model; None if the model's family is not one that sees here, or it has none.

    Args:
        how: arguments of ``from_pretrained``.
    """
    if config.model_type not in entry_points(GROUP):
        return None
    files = {}
    for name in FILES:
        if found := cached_file(path, name, _raise_exceptions_for_missing_entries=False, **how):
            files[name] = Path(found).read_text(encoding="utf-8")
    if not files:
        return None
    require_transformers()
    settings = json.loads(files.get("processor_config.json", "{}"))
    own = {name: value for name, value in settings.items() if isinstance(value, int | str)}
    try:
        image_processor = AutoImageProcessor.from_pretrained(path, backend="pil", **how)
    except ImportError:  # without Pillow a model reads texts
        return None
    family: VisionFamily = load(GROUP, config.model_type)(image_processor, tokenizer, config, own, files)
    return family


def why_blind(config: PreTrainedConfig) -> str:
    """Return the reason why a model cannot see here."""
    families = sorted(entry_points(GROUP))
    if config.model_type in families:
        return f"there is no preprocessor_config.json beside this {config.model_type} model"
    if hasattr(config, "vision_config"):
        return (
            f"models of the type {config.model_type!r} see here only through endpoints; choose from {families}, or "
            f"install a package with its family (entry points {GROUP})"
        )
    return f"models of the type {config.model_type!r} read texts only"


def seen_rows(
    model: PreTrainedModel,
    rows: Sequence[Ids],
    ids: Tensor,
    where: Tensor,
    known: dict[int, list[Tensor]] | None = None,
) -> dict[str, Any]:
    """Return forward()'s tokens and positions for whole sequences, padded on the left.

    Args:
        ids: (rows, longest) padded token ids.
        where: (rows or 1, longest) their positions, if there were no pictures.
    """
    family = vision_of(model)
    if family is None:
        return {"input_ids": ids, "position_ids": where}
    sights = [family.look(model, row) for row in rows]
    if not any(sights):
        return {**family.embedded(model, ids, None), "position_ids": where}
    lengths = [len(row) for row in rows]
    places, rope = joined(sights, lengths, lengths, ids.shape[1], where.expand(len(rows), -1))
    return {**family.embedded(model, ids, places, known), "position_ids": where if rope is None else rope}


def joined(
    sights: Sequence[Sight | None], ends: Sequence[int], counts: Sequence[int], width: int, where: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Return places and positions of the last tokens of sequences, padded on the left.

    Args:
        ends: the number of tokens of each sequence; those that its sight does not know are texts.
        counts: how many of its last tokens are wanted.
        width: the number of columns.
        where: (rows, width) positions of texts without pictures.

    Returns:
        (rows, width) places, and (3, rows, width) positions or None.
    """
    places = np.full((len(sights), width), -1)
    rope, counted = where.cpu().numpy()[None].repeat(3, 0), True
    for row, (sight, end, count) in enumerate(zip(sights, ends, counts, strict=True)):
        if sight is not None:
            places[row, width - count :], own = sight.part(end - count, end)
            if own is not None:
                rope[:, row, width - count :], counted = own, False
    device = where.device
    return torch.from_numpy(places).to(device), None if counted else torch.from_numpy(rope).to(device)


def attended(sights: Sequence[Sight | None], ends: Sequence[int], counts: Sequence[int], where: Tensor) -> Tensor:
    """Return the position of the last token that each token attends to, as :func:`joined` returns positions."""
    last = where.cpu().numpy().copy()
    for row, (sight, end, count) in enumerate(zip(sights, ends, counts, strict=True)):
        if sight is not None and sight.last is not None:
            known = sight.last[end - count : end]
            last[row, last.shape[1] - count :][: len(known)] = known
    return torch.from_numpy(last).to(where.device)
