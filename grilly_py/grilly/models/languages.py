"""English names of the languages that Whisper knows, and their codes: of ISO 639-1, or of 639-3 where that has none."""

from __future__ import annotations

#: Codes, and the names that they go by.
_NAMES = """
af afrikaans, am amharic, ar arabic, as assamese, az azerbaijani, ba bashkir, be belarusian, bg bulgarian, bn bengali,
bo tibetan, br breton, bs bosnian, ca catalan/valencian, cs czech, cy welsh, da danish, de german, el greek, en english,
es spanish/castilian, et estonian, eu basque, fa persian, fi finnish, fo faroese, fr french, gl galician, gu gujarati,
ha hausa, haw hawaiian, he hebrew, hi hindi, hr croatian, ht haitian creole/haitian, hu hungarian, hy armenian,
id indonesian, is icelandic, it italian, ja japanese, jw javanese, ka georgian, kk kazakh, km khmer, kn kannada,
ko korean, la latin, lb luxembourgish/letzeburgesch, ln lingala, lo lao, lt lithuanian, lv latvian, mg malagasy,
mi maori, mk macedonian, ml malayalam, mn mongolian, mr marathi, ms malay, mt maltese, my myanmar/burmese, ne nepali,
nl dutch/flemish, nn nynorsk, no norwegian, oc occitan, pa punjabi/panjabi, pl polish, ps pashto/pushto, pt portuguese,
ro romanian/moldavian/moldovan, ru russian, sa sanskrit, sd sindhi, si sinhala/sinhalese, sk slovak, sl slovenian,
sn shona, so somali, sq albanian, sr serbian, su sundanese, sv swedish, sw swahili, ta tamil, te telugu, tg tajik,
th thai, tk turkmen, tl tagalog, tr turkish, tt tatar, uk ukrainian, ur urdu, uz uzbek, vi vietnamese, yi yiddish,
yo yoruba, yue cantonese, zh chinese/mandarin
"""
#: Names to codes.
CODES = {
    name: code
    for code, names in (entry.split(maxsplit=1) for entry in _NAMES.replace("\n", " ").split(","))
    for name in names.strip().split("/")
}


def code_of(language: str) -> str:
    """The code of "English", "<|en|>" or "en"; what is none of these stays as it is."""
    bare = language.removeprefix("<|").removesuffix("|>").lower()
    return CODES.get(bare, bare)


__all__ = ["CODES", "code_of"]
