"""The reward, beside one written a second time from its description, and its switches one by one."""

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollenv import MissingExtra, UsageError
from rollenv.envs.webshop.goals import NO_LIMIT
from rollenv.envs.webshop.product import Product, ShopGoal
from rollenv.envs.webshop.reward import (
    COLOURS,
    PUBLISHED,
    RewardRules,
    has_spacy,
    normalize_colour,
    nouns_from,
    purchase_reward,
    similarity,
    simple_nouns,
)
from rollenv.envs.webshop.shop import open_shop

fuzz = pytest.importorskip("rapidfuzz.fuzz")

RULES = RewardRules(nouns="simple")
VALUES = (
    "red",
    "dark red wine",
    "small",
    "x-large",
    "8 oz (pack of 2)",
    "★",
    "",
    "navy/blue",
    "Größe 3",
    "black | grey",
)
NAMES = ("color", "size", "flavor name")
ATTRIBUTES = ("machine wash", "long sleeve", "gluten free", "easy use", "hair growth", "100% cotton")
TITLES = (
    "Mens Cotton Shirt Shirt Short Sleeve",
    "Red Table Lamp",
    "Gluten Free Cookies",
    "soft easy and nice",
    "",
    "Shirt Collar Table Cover Box Pack Bag Case Cable Kit Sets Ring",
)
CATEGORIES = ("Clothing › Men › Shirts", "Clothing › Women", "Home › Lamp › Men", "", "Clothing › Men ")


def plain_similarity(one, other):
    """thefuzz's token_set_ratio: what is not ASCII falls out, then the ratio of sets of words."""
    one, other = (
        " ".join(re.sub(r"[^a-z0-9]", " ", text.encode("ascii", "ignore").decode().lower()).split())
        for text in (one, other)
    )
    return round(fuzz.token_set_ratio(one, other)) if one and other else 0


def plain_colour(text):
    for colour in COLOURS:
        if colour in text:
            return colour
    return text


def plain_reward(product, goal, price, options):
    nouns, wanted = simple_nouns(product.title), simple_nouns(goal.name)
    title = 0.2 if not wanted else len(set(nouns) & set(wanted)) / len(wanted)
    levels = [{x.strip() for x in c.split("›")} for c in (product.product_category, goal.product_category)]
    same_kind = product.query == goal.query or len(levels[0] & levels[1]) >= 2 or title > 0.2
    kind = 1.0 if same_kind else 0.5
    if title < 0.1:
        kind = 0.1
    if title == 0:
        kind = 0.0
    text = [product.title.lower(), " ".join(product.bullets).lower(), product.description.lower()]
    attributes = 0
    for wanted_attribute in goal.attributes:
        in_list = [a for a in product.attributes if plain_similarity(a, wanted_attribute) > 85]
        attributes += bool(in_list) or any(wanted_attribute in t for t in text)
    bought = [plain_colour(value) for value in options.values()]
    matched = 0
    asked = list(goal.options.items()) if isinstance(goal.options, dict) else list(goal.options)
    for option in asked:
        if isinstance(option, tuple):
            exact = [colour for colour in COLOURS if colour in option]
            option = exact[0] if exact else str(option)
        else:
            option = plain_colour(option)
        matched += any(plain_similarity(value, option) > 85 for value in bought)
    total = attributes + matched + (price <= goal.price_upper)
    return kind * total / (len(goal.attributes) + len(asked) + 1)


def some_product(rng):
    return Product(
        asin="B0",
        title=rng.choice(TITLES),
        description=rng.choice(("", "Great for Hair Growth.", "MACHINE WASH only")),
        bullets=tuple(rng.sample(("easy use", "Gluten-free", "long", "sleeve"), rng.randrange(3))),
        query=rng.choice(("shirts", "lamps", "")),
        product_category=rng.choice(CATEGORIES),
        attributes=tuple(rng.sample(ATTRIBUTES, rng.randrange(4))) or ("DUMMY_ATTR",),
    )


def some_goal(rng):
    like = some_product(rng)
    names = rng.sample(NAMES, rng.randrange(4))
    values = rng.choices(VALUES, k=len(names))
    return ShopGoal(
        number=0,
        product=0,
        asin="B0",
        query=like.query,
        name=like.title,
        product_category=like.product_category,
        instruction="",
        attributes=tuple(rng.sample(ATTRIBUTES, rng.randrange(1, 5))),
        options=dict(zip(names, values, strict=True)) if rng.random() < 0.5 else tuple(values),
        price_upper=rng.choice((10.0, 30.0, NO_LIMIT)),
    )


@pytest.mark.parametrize("seed", range(4))
def test_random_purchases_pay_what_the_description_says(seed):
    rng = random.Random(seed)
    paid = set()
    for _ in range(200):
        product, goal = some_product(rng), some_goal(rng)
        options = {name: rng.choice(VALUES) for name in rng.sample(NAMES, rng.randrange(4))}
        price = rng.choice((5.0, 10.0, 10.01, 500.0))
        reward, details = purchase_reward(product, goal, price, options, RULES)
        assert reward == pytest.approx(plain_reward(product, goal, price, options))
        parts = details["r_att"] * details["w_att"] + details["r_price"] * details["w_price"]
        parts += details.get("r_option", 0) * details.get("w_option", 0)
        assert reward == pytest.approx(parts * details["r_type"])
        assert sum(details.get(f"w_{part}", 0) for part in ("att", "option", "price")) == pytest.approx(1)
        paid.add(round(reward, 3))
    assert len(paid) > 10


def goal(**changes):
    values = {
        "number": 0,
        "product": 0,
        "asin": "B0",
        "query": "shirts",
        "name": "cotton shirt",
        "product_category": "A › B",
        "instruction": "",
        "attributes": ("long sleeve",),
        "options": {},
        "price_upper": 20.0,
    }
    return ShopGoal(**values | changes)


SHIRT = Product(
    asin="B0", title="Cotton Shirt", query="shirts", product_category="A › B", attributes=("long sleeve", "soft")
)


def pays(product=SHIRT, wanted=None, price=10.0, options=(), **rules):
    return purchase_reward(product, wanted or goal(), price, dict(options), RewardRules(nouns="simple", **rules))[0]


def test_the_right_purchase_pays_one_and_a_dear_one_less():
    assert pays() == 1.0
    assert pays(price=20.0) == 1.0
    assert pays(price=20.01) == 0.5


def test_colours_within_the_value_of_a_pair_are_not_normalised():
    wanted = goal(options={"color": "dark wine red 7"})
    chosen = {"color": "dark wine red 7"}
    assert pays(wanted=wanted, options=chosen) == pytest.approx(
        1.0 if similarity("red", repr(("color", "dark wine red 7"))) > 85 else 2 / 3
    )
    glued = goal(options={"color": "r.brown2070"})
    assert pays(wanted=glued, options={"color": "r.brown2070"}) == pytest.approx(2 / 3)
    assert pays(wanted=glued, options={"color": "r.brown2070"}, pair_options=False) == 1.0
    assert pays(wanted=goal(options=("r.brown2070",)), options={"color": "brown"}) == 1.0


def test_the_type_of_the_product():
    lamp = Product(asin="B1", title="Table Lamp", query="lamps", attributes=("long sleeve",))
    assert pays(lamp) == 0.0
    assert pays(Product(asin="B1", title="Table Lamp", query="shirts", attributes=("long sleeve",))) == 0.0
    assert (
        pays(Product(asin="B1", title="Table Lamp", query="shirts", attributes=("long sleeve",)), zero_overlap=False)
        == 0.1
    )
    nouns = "cotton shirt collar button pocket thread"
    one_of_six = Product(asin="B1", title="Shirt", query="x", attributes=("long sleeve",))
    assert pays(one_of_six, goal(name=nouns)) == 0.5
    repeated = goal(name="shirt shirt shirt shirt shirt shirt shirt shirt shirt shirt shirt")
    assert pays(wanted=repeated) == 0.1
    assert pays(wanted=repeated, repeated_nouns=False) == 1.0
    other = Product(asin="B1", title="Shirt", query="x", product_category="A › B › C", attributes=("long sleeve",))
    assert pays(other, goal(name=nouns)) == 1.0
    assert pays(other, goal(name=nouns), shared_categories=3) == 0.5


@given(st.text(max_size=30), st.text(max_size=30))
def test_similarity_is_symmetric_and_bounded(one, other):
    assert similarity(one, other) == similarity(other, one)
    assert 0 <= similarity(one, other) <= 100


def test_simple_nouns():
    assert simple_nouns("Women's Soft Red Shirt, Washable Shirt with 2 Pockets") == (
        "women's",
        "shirt",
        "shirt",
        "pockets",
    )
    assert simple_nouns("") == ()


def test_sources_of_nouns():
    for unknown in ("wordnet", "auto"):
        with pytest.raises(UsageError, match="unknown"):
            nouns_from(unknown)
    if has_spacy():
        assert "shirt" in nouns_from("spacy")("A cotton shirt")
    else:
        with pytest.raises(MissingExtra, match="spacy"):
            nouns_from("spacy")


@pytest.mark.parametrize("installed", [True, False])
def test_the_reward_does_not_depend_on_what_is_installed(monkeypatch, installed):
    monkeypatch.setattr("rollenv.envs.webshop.reward.has_spacy", lambda: installed)
    assert RewardRules().nouns == "simple"
    assert nouns_from(RewardRules().nouns) is simple_nouns
    reward, details = purchase_reward(some_product(random.Random(1)), goal(), 5.0, {})
    assert details["nouns"] == "simple"
    assert reward == purchase_reward(some_product(random.Random(1)), goal(), 5.0, {}, RULES)[0]


def test_colours_are_the_published_ones_in_their_order():
    assert len(COLOURS) == 102
    assert normalize_colour("dark leopard") == "dark"
    assert normalize_colour("violet lavender") == "lavender"
    assert normalize_colour("steelivy fuchsia") == "fuchsia"
    assert normalize_colour("123alabaster") == "alabaster"
    assert normalize_colour("cobalt") == "cobalt"
    assert normalize_colour("") == ""


@pytest.mark.integration
@pytest.mark.slow
def test_random_purchases_in_the_published_shop_pay_what_the_description_says(data):
    shop = open_shop(data("webshop"))
    goals, rng, paid = shop.goals("synthetic", 0, PUBLISHED), random.Random(0), set()
    for i in range(6000):
        wanted = goals[rng.randrange(len(goals))]
        same = [wanted.product, *map(int, shop.catalogue.listed("query", wanted.query))]
        product = shop.catalogue.product(rng.choice(same) if i % 3 else rng.randrange(len(shop.catalogue)))
        options = {name: rng.choice(values) for name, values in product.options.items() if rng.random() < 0.8}
        if i % 5 == 0:
            product, options = shop.catalogue.product(wanted.product), dict(wanted.options)
        price = product.price(0)
        reward, _ = purchase_reward(product, wanted, price, options)
        assert reward == pytest.approx(plain_reward(product, wanted, price, options)), (i, wanted.number)
        paid.add(round(reward, 2))
    assert {0.0, 1.0} < paid
