"""The language of a text: by its script, and in Latin script by frequent words, endings and characters.

The lists were written for this file, no text was counted for them. Their accuracy is measured in docs/pretraining.md.
"""

import re
from collections.abc import Mapping
from typing import Literal

Language = Literal["en", "zh", "de", "fr", "es", "ru", "ja", "ko", "other", ""]
""""other": a language without a code here; "": a text that shows too little, in Latin script or of no script."""
LANGUAGE_NAMES: Mapping[Language, str] = {
    "en": "English", "zh": "Chinese", "de": "German", "fr": "French", "es": "Spanish", "ru": "Russian",
    "ja": "Japanese", "ko": "Korean",
}  # fmt: skip
LATIN = ("en", "de", "fr", "es")
UNSPACED = ("zh", "ja")
"""Languages without spaces between words."""
SAMPLE = 100_000
"""Characters of a text by which its language is identified."""
EAST_ASIAN_SHARE = 0.2
"""Share of the visible characters from which Chinese, Japanese or Korean is the language of a mixed text."""
KANA_SHARE = 0.1
"""Share of kana among kana and Chinese characters from which a text is Japanese."""
FOREIGN_SHARE = 0.02
"""Share of characters that none of the languages of a script has, from which a text is in another one."""
LEAST_EVIDENCE = 0.15
"""Evidence per word below which a Latin text has no language."""
HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
KANA = re.compile("[\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f]")
HANGUL = re.compile("[\u1100-\u11ff\u3131-\u318e\uac00-\ud7a3]")
CYRILLIC = re.compile("[\u0400-\u052f]")
RUSSIAN = re.compile("[а-яё]", re.IGNORECASE)
NOT_RUSSIAN = re.compile(r"ъ(?![еёюя])|\b(?:е|са|ще|че|й)\b", re.IGNORECASE)
"""Bulgarian, which has the same characters: ъ as a vowel, and words."""
TRADITIONAL_SHARE = 0.1
"""Share of characters without a place in GB2312 above which a text is in traditional characters, of which about a third
differ from simplified ones."""
LATIN_SCRIPT = re.compile("[A-Za-z\u00c0-\u024f\u1e00-\u1eff]")
SCRIPTS = (HAN, KANA, HANGUL, CYRILLIC, LATIN_SCRIPT)
FOREIGN_LATIN = re.compile("[\u00c0-\u024f\u1e00-\u1eff](?<![äöüßéàâçèêëîïôûùœæñáíóúÄÖÜÉÀÂÇÈÊËÎÏÔÛÙŒÆÑÁÍÓÚŸÿ])")
WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


FREQUENT: Mapping[Language, frozenset[str]] = {
    "en": _words(
        "the of and to in is it you that he was for on are with as his they be at this have from or one had by but "
        "not what all were we when your can said there use an a each which she do how their if will up other about "
        "out many then them these so some her would make like him into has more than been who its now did get made "
        "may my over no just where most know after also our me don't it's could because any very only before through "
        "much should those while under against between such never always why here well us someone something people "
        "man woman going want think really too yes good went does doing away down back off i i'm you're he's she's "
        "we're they're"
    ),
    "de": _words(
        "der die und in den von zu das mit sich des auf für ist im dem nicht ein eine als auch es an werden aus er "
        "hat dass sie nach wird bei einer um am sind noch wie einem über einen so zum war haben nur oder aber vor zur "
        "bis mehr durch man sein wurde sei ich wir ihr kein keine wenn was ja nein mich mir dich dir uns euch ihm ihn "
        "ihnen mein dein unser diese dieser dieses diesem diesen wurden kann muss müssen soll schon sehr hier dort "
        "jetzt immer hatte hatten gibt weil denn doch nichts etwas alle alles unter gegen zwischen seit während ohne "
        "bin bist waren habe viele vom beim wer wo warum wollen will würde du kannst jahr jahre mann frau"
    ),
    "fr": _words(
        "de la le et les des en un une du que est pour qui dans a par plus pas au sur ne se ce il sont avec son elle "
        "ils elles je tu nous vous on mais ou où si leur leurs ses sa mon ma mes ton ta tes notre nos votre vos cette "
        "ces cet être avoir fait été était étaient ont avait aux comme tout tous toute toutes aussi bien même sans "
        "deux peut très donc quand y rien jamais encore moi toi lui dont après avant entre sous chez parce car puis "
        "ici là quelque quelques autre autres sera suis es sommes êtes faire dit peu beaucoup non oui pourquoi ça "
        "cela ceux celle homme femme ans as ai avez alors à"
    ),
    "es": _words(
        "de la que el en y a los se del las un por con no una su para es al lo como más o pero sus le ha me si sin "
        "sobre este ya entre cuando todo esta ser son dos también fue había era muy años hasta desde está mi porque "
        "qué sólo han yo hay vez puede todos así nos ni parte tiene él uno donde bien tiempo mismo ese ahora e otro "
        "después te otros aunque esa eso hace otra tan durante siempre día tanto ella tres sí estos estas estaba "
        "estoy eres soy somos nosotros ellos ellas usted ustedes tu tus nada algo alguien quién cómo dónde hacer "
        "tengo mucho mucha muchos nunca estaban fueron quiero cosa cosas según sido tenía eran contra hombre mujer os"
    ),
}
"""Frequent words, mostly without meaning of their own."""
ENDINGS: Mapping[Language, str] = {
    "en": r"(?:ing|tions?|ness|ly|ed|ght|th|ck|sh|ey|ys|ould|ound)$|'(?:s|t|re|ve|ll|d|m)$",
    "de": r"(?:ung|ungen|lich\w*|isch\w*|keit|heit|chen|tzt|iger|ich|cht)$",
    "fr": r"(?:eux|euse|aux|ment|iques?|elles?|ées?|ait|aient|eurs?|oir|ais|ez)$|^(?:[dlnsjmtc]|qu)'",
    "es": r"(?:ción|ciones|dad|dades|ando|iendo|ad[oa]s?|idos?|mente|aban?|os[oa]|er[oa]|ría|os)$",
}
"""Endings of other words, and the elisions of French."""
ENDING_PATTERNS: Mapping[Language, re.Pattern[str]] = {
    language: re.compile(pattern) for language, pattern in ENDINGS.items()
}
CHARACTERS: Mapping[Language, Mapping[str, float]] = {
    "en": {},
    "de": dict.fromkeys("äöüß", 0.5),
    "fr": dict.fromkeys("çèêëîïôœûùæ", 0.5) | dict.fromkeys("éàâ", 0.3),
    "es": dict.fromkeys("ñ¿¡", 0.5) | dict.fromkeys("áíóú", 0.3) | {"é": 0.1},
}
"""Weights of characters that few of the languages have."""
SHARED, ENDING = 0.6, 0.4
"""Weights of a frequent word of several languages, and of an ending; that of a word of one language is 1."""


def detect_language(text: str) -> Language:
    """The language of a text, from its first characters; "other" and "" as `Language` says.

    Kana make a text Japanese, Hangul Korean; a short Japanese text without kana is taken for Chinese.
    """
    sample = text[:SAMPLE]
    visible = len(sample) - sum(map(sample.count, " \n\t"))
    han, kana, hangul, cyrillic, latin = (len(each.findall(sample)) for each in SCRIPTS)
    if max(han + kana, hangul) > EAST_ASIAN_SHARE * visible:
        return "ko" if hangul > han + kana else "ja" if kana >= KANA_SHARE * (han + kana) else "zh"
    if cyrillic and cyrillic >= latin:
        return _cyrillic_language(sample)
    if 2 * latin <= sum(map(str.isalpha, sample)):  # another script, or none
        return "other" if any(map(str.isalpha, sample)) else ""
    return _latin_language(sample)


def is_unspaced(text: str) -> bool:
    """Whether a text is in a language without spaces between words."""
    return detect_language(text) in UNSPACED


def is_traditional(text: str) -> bool:
    """Whether a Chinese text is in traditional characters: many of them are in Big5 and not in GB2312."""
    han = HAN.findall(text[:SAMPLE])
    only = sum(_can_encode(each, "big5") and not _can_encode(each, "gb2312") for each in han)
    return only > TRADITIONAL_SHARE * len(han)


def _can_encode(character: str, encoding: str) -> bool:
    try:
        return bool(character.encode(encoding))
    except UnicodeEncodeError:
        return False


def language_name(text: str) -> str:
    """The English name of a text's language; "English" where none is found, "another language" for others."""
    language = detect_language(text)
    return "another language" if language == "other" else LANGUAGE_NAMES[language or "en"]


def _cyrillic_language(text: str) -> Language:
    """Russian, unless there are characters that it does not have, or signs of Bulgarian alone."""
    characters = CYRILLIC.findall(text)
    foreign = len(characters) - sum(map(len, RUSSIAN.findall(text)))
    bulgarian = NOT_RUSSIAN.search(text) and not any(character in text for character in "ыэёЫЭЁ")
    return "other" if bulgarian or foreign > FOREIGN_SHARE * len(characters) else "ru"


def _latin_language(text: str) -> Language:
    """The language with most evidence in frequent words, endings and characters; "" for a tie, and for little of it."""
    lowered = text.lower().replace("’", "'")
    if len(FOREIGN_LATIN.findall(lowered)) > FOREIGN_SHARE * len(LATIN_SCRIPT.findall(lowered)):
        return "other"
    evidence: dict[Language, float] = {
        language: sum(weight * lowered.count(character) for character, weight in characters.items())
        for language, characters in CHARACTERS.items()
    }
    words = WORD.findall(lowered)
    for word in words:
        known: list[Language] = [language for language, frequent in FREQUENT.items() if word in frequent]
        for language in known:
            evidence[language] += 1.0 if len(known) == 1 else SHARED
        if not known:
            for language, ending in ENDING_PATTERNS.items():
                evidence[language] += ENDING if ending.search(word) else 0.0
    second, first = sorted(evidence, key=lambda language: evidence[language])[-2:]
    tie = evidence[first] == evidence[second]
    return "" if tie or evidence[first] < LEAST_EVIDENCE * len(words) else first
