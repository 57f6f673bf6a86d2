"""Words for names and values: English and invented, split for good into training and held-out.

Whether a word is held out depends on its letters alone, so no run, seed or vocabulary can
leak an evaluation word into training. Invented words are of unlimited number; most are
drawn from letter statistics of the English list, so that every piece of a subword
tokenizer gets practice.
"""

import hashlib
import random
from collections import defaultdict

_NOUNS = """
account acorn address age agent airport album alley altitude amber amount anchor animal apple
apron archive area arrow atlas author badge bakery balance balloon bamboo banana banner barley
barrel basil basket battery beach beacon bean bearing bell berry bicycle billing bird biscuit
blanket blossom boat bonus book boot border bottle boulder branch brand bread breeze bridge
broom brush bucket budget buffer building bundle burner butter button cabin cabinet cable cactus
calendar camera candle canvas capacity capital captain carbon card cargo carpet carrot castle
category cedar ceiling cellar chain chair chamber channel chapter charge cherry chess chief
chimney circle citrus city clay climate clock cloud clover coast cobalt code coffee collar color
column comet company compass contact copper coral cork corner cost cotton country courier course
cousin credit creek crew crown crystal currency curtain cushion customer cycle dairy dam date
deadline debt decade delay delivery density depot depth desk detail device diameter diary dinner
discount distance doctor document dollar dolphin door dragon drawer driver drum duration eagle
earth east echo edition editor elbow elevation ember emerald employee engine entry equity error
estate event exit expert export fabric factor factory falcon farm feather fee fence fern ferry
festival field figure file finger flag flame flavor fleet flight floor flour flower flute folder
forest forge fork formula fountain fox frame freight friend frost fruit fuel garage garden
garlic gate ginger glacier glass globe glove goat grade grain granite grape gravel group guest
guide guitar habit hammer harbor harvest hazel heating height helmet herb hill holiday honey
horizon horse hospital hotel humidity hunter ice income index inlet insect interest invoice iris
iron island ivory jacket jar jasmine jewel job journal journey judge juice jungle kennel kernel
kettle keyboard kiln kingdom kitchen kite ladder lagoon lamp lane lantern latitude launch laurel
lavender layer leader leaf league leather lemon lens lesson letter level lever library license
lily limit linen lion list loan lobby locker longitude machine magnet mail manager mango manual
maple marble margin market mass master match meadow meal medal melon member memory mentor menu
metal meter mileage mill mineral mint mirror mission model monitor month mortgage motor mountain
museum needle nest network nickel north notebook number nurse oak oasis ocean office olive onion
opal orange orbit orchard order organ origin otter output oven owner oxygen oyster package paint
palace palm panel paper parcel park parrot party passage password pasture path payment peach
pearl pebble pencil penguin pepper percent period permit person phone piano picture pillow pilot
pine pipe pitch planet plant plaster plate player plaza plug pocket poem policy pond population
porch port position postage potato powder premium pressure price printer priority prize product
profit project pump pupil purchase quality quantity quarry quartz queen queue quota rabbit radar
radio radius railway rain ramp range rank rate rating raven receipt recipe record refund region
register rent report reserve rice ribbon river road robot rocket roof room root rope rose route
ruby rule runner saddle safety saffron sailor salad salary salmon salt sample sand sapphire
saucer savings scale scarf schedule school score screen script season seat section seed sensor
server service shade shadow shampoo shark sheet shelf shelter shield shift ship shirt shoe shop
shore shuttle signal silk silver size skill sled sleeve slope smoke snow soap socket sofa soil
soup source south spark spear speed spice spider spoon spring stable stadium staff stage stair
stamp station statue status steam steel stock stone storage storm story stove strand stream
street string student studio subject sugar suite summer supplier supply surface surplus swan
sweater switch symbol syrup table tablet tailor target tax taxi teacher team temple tenant tent
term texture theater thread thunder ticket tide tiger timber time title toast token toll tomato
tool topic torch total tower town track traffic trail train trailer tray treasure tree trolley
trophy truck trumpet tulip tunnel turbine turtle uncle unit uptime usage valley value valve van
vanilla vault velocity velvet vendor vessel village vine violet violin visitor voltage volume
voyage wage wagon wallet walnut warranty water wave weather wedding weight west whale wheat
wheel width willow wind window wine winner winter wire wolf wood wool worker yard yarn year
yield zebra zinc zone
"""
ENGLISH = tuple(_NOUNS.split())
"""Common nouns; about one in five is held out."""

_SINGLE = "b c d f g h j k l m n p r s t v w z"
_CLUSTERS = "bl br ch cl cr dr fl fr gl gr pl pr qu sc sh sk sl sm sn sp st"
_VOWELS = "a e i o u a e i o u ai ea ee oa oo ou y"
_ENDINGS = "b ck d g k l m n p r s t x nd ng nk nt rd rk rn rt sh st th"
ONSETS = [*_SINGLE.split(), *_CLUSTERS.split()]
VOWELS = _VOWELS.split()
CODAS = ["", "", "", *_ENDINGS.split()]
BEGINNINGS = ["add", "calc", "find", "get", "list", "load", "read", "show", "view"]
BEGUN_SHARE = 0.03
"""Of the words of training: such beginnings are tokens that it would else see in names only."""


def is_held_out(word: str) -> bool:
    """Say whether ``word`` (case ignored) is kept for evaluation."""
    return hashlib.blake2s(word.lower().encode(), digest_size=2).digest()[0] % 5 == 0


def _followers() -> dict[str, list[str]]:
    table: dict[str, list[str]] = defaultdict(list)
    for word in ENGLISH:
        framed = f"^^{word}$"
        for place in range(2, len(framed)):
            table[framed[place - 2 : place]].append(framed[place])
    return dict(table)


_FOLLOWERS = _followers()


def _lookalike(rng: random.Random) -> str:
    """Draw a word whose letter triples are those of the English list."""
    state, word = "^^", ""
    while True:
        letter = rng.choice(_FOLLOWERS[state])
        if letter == "$" or len(word) >= 11:
            return word
        word += letter
        state = state[1] + letter


def _begun(rng: random.Random) -> str:
    """Draw a word that begins as tools' names do, which is no tool's for that."""
    return rng.choice(BEGINNINGS) + _lookalike(rng)


def _syllables(rng: random.Random) -> str:
    parts = [
        rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS)
        for _ in range(rng.choice((1, 2, 2)))
    ]
    return "".join(parts)


class WordSupply:
    """Draws words of one side of the split; never the same word twice until ``restart``."""

    def __init__(self, rng: random.Random, *, held_out: bool, english_share: float = 0.4) -> None:
        self._rng, self._held_out = rng, held_out
        self._english_share = english_share
        self._english = [w for w in ENGLISH if is_held_out(w) == held_out]
        self._used: set[str] = set()

    def restart(self) -> None:
        """Forget which words were drawn (a new session begins)."""
        self._used.clear()

    def word(self) -> str:
        """Draw a lower-case word of three to eight letters, not drawn since ``restart``."""
        while True:
            kind = self._rng.random()
            if not self._held_out and self._rng.random() < BEGUN_SHARE:
                word = _begun(self._rng)
            elif kind < self._english_share:
                word = self._rng.choice(self._english)
            elif kind < self._english_share + 0.35:
                word = _lookalike(self._rng)
            else:
                word = _syllables(self._rng)
            if not 3 <= len(word) <= 8 or word in self._used:
                continue
            if is_held_out(word) != self._held_out:
                continue
            self._used.add(word)
            return word
