"""Vocabulary of generated files."""

from __future__ import annotations

WORDS = tuple(
    """
    anchor apple arrow autumn badge bakery balcony bamboo banner barrel basket beacon bell bench berry blanket bottle
    branch bread bridge bronze brush bucket button cabin cable camera candle canvas canyon captain carpet castle cedar
    cellar chalk cherry chimney circle clay cliff clock cloud clover coast coffee comet copper coral corner cotton
    cradle crane crystal curtain dawn desert dinner dolphin donkey dragon drum eagle ember engine falcon feather fence
    field finger flame flute forest fossil fountain fox garden garlic gate ginger glacier globe glove granite grape
    hammer harbor harvest hazel helmet heron hill honey horizon island ivory jacket jasmine jungle kettle kitchen
    ladder lagoon lamp lantern laurel lemon lily linen lizard lobster magnet maple marble market meadow melon mirror
    mountain museum needle nickel oasis ocean olive onion orange orbit orchard otter oyster paddle palace panther
    pebble pepper piano pigeon pillow pine planet plum pocket pond poplar potato prairie pumpkin quarry quartz rabbit
    raven ribbon river robin rocket saddle salmon sandal scarf shadow shelter shovel silver swallow spider spring
    squirrel station stone summit sunset tailor temple thunder ticket tiger timber tower trumpet tulip tunnel turtle
    valley velvet violet wagon walnut water whale willow window winter wolf yarn zebra
    """.split()  # noqa: SIM905
)
TOPICS = tuple(
    """
    accounts archive assets backup billing budget catalog clients config contracts courses designs docs drafts events
    exports finance gallery guides images imports inbox inventory invoices journal lab legal library mail maps media
    meetings music notes offers orders papers photos plans press projects reports research sales samples scans
    shipping sources staff stock surveys tests tickets travel videos
    """.split()  # noqa: SIM905
)
FIRST_NAMES = tuple(
    """
    Ada Ahmed Aiko Alma Amir Anna Arjun Bea Boris Carla Chen Clara David Diego Elena Emil Eva Farid Fatima Felix Greta
    Hana Hugo Ines Ivan Jana Jonas Julia Kai Karim Lara Leo Lina Luca Maja Marco Maria Mei Milan Mona Nadia Nils Nina
    Omar Oscar Paula Pedro Priya Rosa Ruben Samir Sara Sofia Tariq Theo Tomas Uma Vera Viktor Yuki Zoe
    """.split()  # noqa: SIM905
)
LAST_NAMES = tuple(
    """
    Adler Bauer Becker Berg Brandt Castro Costa Cruz Diaz Ferrari Fischer Garcia Haas Hansen Huber Ito Jansen Kaya
    Keller Khan Kim Kovac Larsen Lehmann Lopez Lund Marin Meyer Moreau Nakamura Novak Okoye Olsen Ortiz Park Patel
    Peters Petrov Rao Reyes Ricci Rossi Roth Santos Sato Schmidt Silva Singh Suzuki Tanaka Torres Vogel Wagner Walker
    Wang Weber Wolff Yilmaz Young Zhang
    """.split()  # noqa: SIM905
)
LEVELS = ("DEBUG", "INFO", "WARN", "ERROR")
SERVICES = ("auth", "billing", "cache", "cart", "gateway", "mailer", "indexer", "payments", "queue", "search", "users")
CITIES = tuple(
    """
    Berlin Bogota Cairo Dublin Hanoi Lagos Lima Lisbon Madrid Nairobi Oslo Paris Prague Quito Riga
    Rome Seoul Sofia Tokyo Vienna
    """.split()  # noqa: SIM905
)
