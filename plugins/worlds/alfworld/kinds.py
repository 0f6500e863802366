"""What kinds of objects and receptacles can do, as ALFWorld's domain has it."""

from __future__ import annotations

#: Receptacles with a door or a lid; their contents are seen and reached only while they are open.
OPENABLE = frozenset({"fridge", "cabinet", "microwave", "drawer", "safe"})
#: Objects that can hold others: examining one lists what is in it.
VESSELS = frozenset({"pot", "mug", "plate", "bowl", "cup", "pan", "box"})
LAMPS = frozenset({"desklamp", "floorlamp"})
KNIVES = frozenset({"knife", "butterknife"})
SLICEABLE = frozenset({"apple", "bread", "egg", "lettuce", "potato", "tomato"})
HEATABLE = frozenset({"apple", "bread", "cup", "egg", "mug", "plate", "potato", "tomato"})
COOLABLE = frozenset({
    "apple", "bowl", "bread", "cup", "egg", "lettuce", "mug", "pan", "plate", "pot", "potato", "tomato", "winebottle",
})  # fmt: skip
CLEANABLE = frozenset({
    "apple", "bowl", "butterknife", "cloth", "cup", "dishsponge", "egg", "fork", "kettle", "knife", "ladle", "lettuce",
    "mug", "pan", "plate", "pot", "potato", "soapbar", "spatula", "spoon", "tomato",
})  # fmt: skip

_TABLES = ("countertop", "diningtable", "coffeetable", "sidetable")
#: Receptacles, and what may be put into them; "table" is each of the four kinds of tables.
_FITTING = """
armchair: basketball book box cellphone cloth creditcard keychain laptop newspaper pillow remotecontrol
bathtubbasin: cloth dishsponge handtowel soapbar
bed: baseballbat basketball book cellphone laptop newspaper pillow tennisracket
cabinet: book bowl box candle cd cloth cup dishsponge glassbottle handtowel kettle ladle mug newspaper pan
cabinet: peppershaker plate plunger pot saltshaker soapbar soapbottle spraybottle tissuebox toiletpaper
cabinet: toiletpaperroll vase wateringcan winebottle
cart: candle cloth dishsponge handtowel mug papertowel plunger soapbar soapbottle spraybottle statue tissuebox
cart: toiletpaper toiletpaperroll vase
coffeemachine: mug
desk: alarmclock basketball book bowl box candle cd cellphone cloth creditcard cup glassbottle keychain laptop mug
desk: newspaper pen pencil plate remotecontrol soapbottle spraybottle statue tennisracket tissuebox toiletpaper
desk: toiletpaperroll vase watch wateringcan winebottle
drawer: book butterknife candle cd cellphone cloth creditcard dishsponge fork handtowel keychain knife ladle newspaper
drawer: pen pencil peppershaker remotecontrol saltshaker soapbar soapbottle spatula spoon spraybottle tissuebox
drawer: toiletpaper toiletpaperroll watch wateringcan
dresser: alarmclock basketball book bowl box candle cd cellphone cloth creditcard cup glassbottle keychain laptop mug
dresser: newspaper pen pencil plate remotecontrol spraybottle statue tennisracket tissuebox toiletpaper
dresser: toiletpaperroll vase watch wateringcan winebottle
fridge: apple bowl bread cup egg glassbottle lettuce mug pan plate pot potato tomato winebottle
garbagecan: apple bread cd cloth dishsponge egg handtowel lettuce newspaper papertowel pen pencil potato soapbar
garbagecan: soapbottle spraybottle tissuebox toiletpaper toiletpaperroll tomato winebottle
handtowelholder: handtowel
laundryhamper: cloth
microwave: apple bowl bread cup egg glassbottle mug plate potato tomato
ottoman: basketball book box cellphone cloth creditcard keychain laptop newspaper pillow remotecontrol
safe: cd cellphone creditcard keychain statue vase watch
shelf: alarmclock book bowl box candle cd cellphone cloth creditcard cup dishsponge glassbottle handtowel kettle
shelf: keychain mug newspaper papertowel pen pencil peppershaker plate pot remotecontrol saltshaker soapbar soapbottle
shelf: spraybottle statue tissuebox toiletpaper toiletpaperroll vase watch wateringcan winebottle
sinkbasin: apple bowl butterknife cloth cup dishsponge egg fork glassbottle handtowel kettle knife ladle lettuce mug
sinkbasin: pan plate pot potato soapbar spatula spoon tomato
sofa: basketball book box cellphone cloth creditcard keychain laptop newspaper pillow remotecontrol
stoveburner: kettle pan pot
table: alarmclock apple baseballbat basketball book bowl box bread butterknife candle cd cellphone cloth creditcard
table: cup dishsponge egg fork glassbottle handtowel kettle keychain knife ladle laptop lettuce mug newspaper pan
table: papertowel pen pencil peppershaker plate pot potato remotecontrol saltshaker soapbar soapbottle spatula spoon
table: spraybottle statue tennisracket tissuebox toiletpaper toiletpaperroll tomato vase watch wateringcan winebottle
toilet: candle cloth dishsponge handtowel newspaper papertowel soapbar soapbottle spraybottle tissuebox toiletpaper
toilet: toiletpaperroll
toiletpaperhanger: toiletpaper toiletpaperroll
towelholder: towel
tvstand: tissuebox
"""


def _fitting() -> frozenset[tuple[str, str]]:
    pairs = set()
    for line in _FITTING.split("\n")[1:-1]:
        receptacle, _, things = line.partition(": ")
        for each in _TABLES if receptacle == "table" else (receptacle,):
            pairs |= {(each, thing) for thing in things.split()}
    return frozenset(pairs)


#: Pairs of a kind of receptacle and a kind of object that may be put into it.
FITS = _fitting()
