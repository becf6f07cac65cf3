"""Detects whether the first record is a header (Contract importer 11), and derives column names."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice, pairwise
from typing import Self

from queryserver.formats.arrow import BaseType
from queryserver.formats.cell_types.classes import ColumnFacts, cell_facts, classify, column_type
from queryserver.formats.cell_types.value_formats import profile_column
from queryserver.formats.table_files import BLANKS, CellKind, Cells

_ENGLISH = """
    id ids uuid guid key code name names first last middle full user username login email mail phone mobile fax address
    street city town state province region country county zip postal postcode lat lon lng latitude longitude date day
    month year time timestamp datetime created updated modified start end begin hour minute second duration age sex
    gender birth dob title description desc comment comments note notes text label type kind category class group status
    flag active enabled value amount price cost total sum count qty quantity number num rate ratio percent pct score
    rank level size length width height weight unit currency balance tax discount revenue sales salary income order
    product item sku brand model color customer client account company department dept team manager employee job role
    project task parent child source target url link path file host ip port version index row column col field header
    attribute property tag tags language lang min max avg mean average median std
    author editor publisher genre species school shop
    surname forename occupation colour division article supplier organisation organization
"""
_LATIN = """
    nom prenom ville rue adresse pays societe entreprise client courriel telephone metier profession couleur produit
    categorie rubrique statut etat quantite prix montant numero reference designation libelle commune departement
    naissance commentaire auteur titre editeur annee mois genre ecole quartier remarque

    vorname nachname familienname ort stadt strasse anschrift land firma kunde beruf farbe artikel produkt kategorie
    warengruppe zustand menge preis betrag nummer bezeichnung beschreibung abteilung datum geburtsdatum telefon plz
    bemerkung einheit anzahl titel autor verlag jahr monat schule bundesland ware

    nombre apellido apellidos ciudad poblacion calle direccion pais empresa cliente correo telefono profesion color
    producto articulo categoria estado cantidad precio importe numero fecha codigo descripcion departamento provincia
    autor titulo editorial genero escuela barrio

    nome sobrenome apelido cidade municipio rua endereco morada profissao cor produto situacao quantidade preco valor
    data descricao setor telefone observacao escola bairro editora

    cognome citta comune indirizzo paese azienda ditta professione colore prodotto stato quantita prezzo importo codice
    descrizione reparto provincia autore titolo editore genere scuola mese regione

    naam voornaam achternaam plaats woonplaats straat adres bedrijf klant beroep kleur artikel categorie aantal prijs
    bedrag nummer omschrijving afdeling datum telefoon auteur
    titel uitgever maand school

    imie nazwisko miasto miejscowosc ulica kraj klient zawod kolor towar produkt kategoria stan ilosc cena kwota numer
    opis dzial data wojewodztwo tytul autor wydawca rok miesiac szkola

    adi ad soyadi soyad sehir sokak cadde ulke sirket musteri meslek renk urun kategori durum miktar fiyat tutar numara
    aciklama bolum tarih telefon kod yazar baslik yayinevi okul isim

    namn fornamn efternamn ort gata adress foretag kund yrke farg vara antal pris belopp avdelning
    navn fornavn efternavn etternavn adresse gade virksomhed kunde antal belob
    jmeno prijmeni obec mesto ulice zeme spolecnost zakaznik povolani barva zbozi mnozstvi cena castka oddeleni
"""
_CYRILLIC = """
    имя фамилия отчество фио город улица адрес страна регион область организация компания клиент должность почта телефон
    цвет товар категория состояние статус количество цена сумма номер дата код описание отдел название наименование
    автор издательство год месяц школа район примечание
    прізвище місто вулиця країна компанія клієнт посада пошта колір категорія стан кількість ціна опис відділ назва
"""
_GREEK = """
    όνομα ονομα επώνυμο επωνυμο ονοματεπώνυμο πόλη πολη διεύθυνση διευθυνση οδός χώρα χωρα περιοχή νομός δήμος εταιρεία
    εταιρία πελάτης τηλέφωνο επάγγελμα χρώμα προϊόν προιον κατηγορία κατάσταση ποσότητα ποσοτητα τιμή τιμη ποσό αξία
    αριθμός κωδικός κωδικος περιγραφή περιγραφη τμήμα τμημα ημερομηνία ημερομηνια έτος μήνας σχολείο σημειώσεις τίτλος
    συγγραφέας
"""
_UNSPACED = """
    姓名 名字 姓氏 名称 名稱 编号 編號 编码 地址 城市 省份 国家 國家 地区 地區 街道 公司 客户 客戶 职业 邮箱
    电话 電話 手机 颜色 状态 狀態
    类别 類別 类型 分类 产品 產品 商品 部门 部門 数量 價格 价格 单价 金额 日期 时间 备注 備註 单位 性别 年龄

    氏名 名前 顧客 住所 都道府県 市区町村 会社 職業 メール 分類 商品 部署 数量 価格 単価 日付 備考 番号
    性別 年齢 種別 区分 国名

    이름 성명 고객 주소 도시 지역 국가 회사 직업 이메일 전화 색상 상태 분류 상품 제품 부서 수량 가격 금액 날짜
    번호 비고 성별 나이 코드
"""
"""Words of scripts that do not separate words with spaces. They are searched for anywhere in a cell."""

_LETTER_RUN = re.compile(r"[^\W\d_]+")
_LOWER_TO_UPPER = re.compile(r"(?<=[a-z])(?=[A-Z])")


def column_word_share(cell: str) -> float:
    """Return the fraction of a cell's words that are common column names. Camel case is split into words."""
    words, parts = _words()
    if any(part in cell for part in parts):
        return 1.0
    found = [part.lower() for run in _LETTER_RUN.findall(without_accents(cell)) for part in _LOWER_TO_UPPER.split(run)]
    return sum(word in words for word in found) / len(found) if found else 0.0


def without_accents(text: str) -> str:
    """Replace accented Latin letters with unaccented ones."""
    if text.isascii():
        return text
    text = text.replace("ß", "ss").replace("\u0131", "i").replace("ł", "l").replace("Ł", "L").replace("ø", "o")
    return "".join(letters[0] if (letters := unicodedata.normalize("NFD", one))[0].isascii() else one for one in text)


@cache
def _words() -> tuple[frozenset[str], tuple[str, ...]]:
    return frozenset(f"{_ENGLISH} {_LATIN} {_CYRILLIC} {_GREEK}".split()), tuple(dict.fromkeys(_UNSPACED.split()))


_MIN_CELLS = 3
"""Minimum number of cells below the header for most heuristics."""
_MIN_RULE_SHARE = 0.9
"""Minimum fraction of the cells that must follow a rule."""
_MAX_CHANCE = 4
"""Similarity of up to this number of distinct cells may be a coincidence."""
_WORDS = re.compile(r"(?=.{4})[^\W\d_]+(?:[ -][^\W\d_]+)*")
_UPPER_OF_TWO = re.compile(r"[^\W\d_]{2}")
_SIGNS = " @.-/:,&+"
_MIN_REPEATED_CELLS = 4
_REPEATED_SHARE = 0.5


def header_evidence(header: str, cells: Sequence[str]) -> float:
    """Return the evidence from the form of the cells that `header` is the name of a text column. A negative number is
    evidence against it.

    `cells` are trimmed, not NULL, and different from `header`.
    """
    found = _length_evidence(header, cells)
    if len(cells) < _MIN_CELLS:
        return found
    found += _case_evidence(header, cells) + _character_evidence(header, cells) + _repetition_evidence(cells)
    return found


def _length_evidence(header: str, cells: Sequence[str]) -> float:
    lengths = [len(cell) for cell in cells]
    shortest, longest = min(lengths), max(lengths)
    if len(cells) > 1 and shortest == longest:
        if len(header) == shortest:
            return -0.5
        # A few words may have the same length by coincidence; codes have it by design.
        return 0.2 if len(set(cells)) <= _MAX_CHANCE and all(map(_are_words, cells)) else 0.5
    if len(cells) < _MIN_CELLS or shortest <= len(header) <= longest:
        return 0.0
    spread = max(longest - shortest, 1)
    far = max(len(header) - longest, shortest - len(header)) / spread
    return 0.5 if far >= 0.5 and len(cells) > _MAX_CHANCE else 0.25


def _are_words(cell: str) -> bool:
    return _WORDS.fullmatch(cell) is not None and cell != cell.upper()


def _case_evidence(header: str, cells: Sequence[str]) -> float:
    styles = Counter(filter(None, map(_letter_case, cells)))
    own = _letter_case(header)
    if own is None or not styles or styles.total() < _MIN_CELLS:
        return 0.0
    style, count = styles.most_common(1)[0]
    if count < _MIN_RULE_SHARE * styles.total():
        return 0.0
    if own == style:
        return -0.1
    return 0.25 if "mixed" in {own, style} else 0.75


def _letter_case(cell: str) -> str | None:
    """Return the letter case of a cell, or None for scripts without case and for cells with a single letter."""
    if not _UPPER_OF_TWO.search(cell) or cell.lower() == cell.upper():
        return None
    if cell == cell.lower():
        return "lower"
    if cell == cell.upper():
        return "upper"
    return "title" if cell[0].isupper() or not cell[0].isalpha() else "mixed"


def _character_evidence(header: str, cells: Sequence[str]) -> float:
    """Return the evidence from digits, signs and non-Latin letters that only the cells or only the header contains."""
    found = 0.0
    if _share(cells, _has_digit) >= _MIN_RULE_SHARE and not _has_digit(header):
        found += 0.75
    elif any(
        _share(cells, lambda cell, sign=sign: sign in cell) >= _MIN_RULE_SHARE and sign not in header for sign in _SIGNS
    ):
        found += 0.5
    if _share(cells, _is_foreign) >= _MIN_RULE_SHARE and not _is_foreign(header):
        found += 0.75
    if "_" in header and _share(cells, lambda cell: "_" in cell) == 0:
        found += 0.5
    return found


def _has_digit(cell: str) -> bool:
    return any(character.isdigit() for character in cell)


def _is_foreign(cell: str) -> bool:
    """Return whether the cell contains non-Latin letters."""
    return any(character.isalpha() and character > "\u024f" for character in cell)


def _share(cells: Sequence[str], rule: Callable[[str], bool]) -> float:
    return sum(map(rule, cells)) / len(cells)


def _repetition_evidence(cells: Sequence[str]) -> float:
    """Return the evidence from repeated values: above a column with few distinct values, a unique cell is a header."""
    if len(cells) < _MIN_REPEATED_CELLS:
        return 0.0
    once = sum(count == 1 for count in Counter(cells).values())
    distinct = len(set(cells))
    if distinct > _REPEATED_SHARE * len(cells):
        return 0.0
    return 0.75 if once == 0 else 0.5 if once <= 0.1 * len(cells) else 0.25


COMPARED_RECORDS = 100
"""Number of non-blank records with which the first record is compared."""

MAX_NAME_CHARACTERS = 255

_LINE_BREAKS = re.compile("[\\n\\v\\f\\r\x85\u2028\u2029]+")
_YEARS = range(1500, 2200)
_NAME = re.compile(r"(?!.*(?:@[\w-]+\.|://))(?:[^\w]{0,3}[^\W\d][^\x00-\x1f\x7f-\x9f]{0,63}|[#%\u2116])")
_TEMPORAL = frozenset({CellKind.DATE, CellKind.TIMESTAMP, CellKind.TIME})
_HEADER_KINDS = (
    frozenset({CellKind.NULL, CellKind.TEXT, CellKind.INTEGER, CellKind.DECIMAL, CellKind.DOUBLE}) | _TEMPORAL
)
_NUMBERS = frozenset({BaseType.INT64, BaseType.FLOAT64, BaseType.DECIMAL, BaseType.BOOLEAN})
_MIN_EVIDENCE = 0.5
"""Minimum total evidence over all columns for a header."""
_MIN_STEPS = 3
_MAX_WORD_CELL_SHARE = 0.5
_MIN_WORD_SHARE = 0.6


def has_header(records: Iterable[Cells]) -> bool:
    """Return whether the first record is a header. Reads up to COMPARED_RECORDS further non-blank records."""
    source = iter(records)
    header = next(source, None)
    if header is None:
        return False
    kinds = [classify(cell) for cell in header]
    if set(kinds) <= {CellKind.NULL} or set(kinds) - _HEADER_KINDS:
        return False
    data = list(
        islice(
            (record for record in source if any(classify(cell) is not CellKind.NULL for cell in record)),
            COMPARED_RECORDS,
        )
    )
    named = [cell.strip(BLANKS) for cell, kind in zip(header, kinds, strict=True) if kind is not CellKind.NULL]
    is_unique = len({name.lower() for name in named}) == len(named)
    if any(kind not in {CellKind.NULL, CellKind.TEXT} for kind in kinds):
        columns = [_Column.below(data, position) for position in range(len(header))]
        return bool(data) and is_unique and _are_header_values(header, kinds, columns)
    if not data:
        return len(header) > 1 and len(named) == len(header) and is_unique and all(map(_NAME.fullmatch, named))
    found = 0.0
    for position, (cell, kind) in enumerate(zip(header, kinds, strict=True)):
        if kind is CellKind.NULL or not (column := _Column.below(data, position)).cells:
            continue
        if column.type is not BaseType.STRING:
            return True
        found += _column_evidence(cell.strip(BLANKS), column.cells)
    # A title line has fewer cells than the table below it.
    widths = Counter(map(len, data))
    return is_unique and found >= _MIN_EVIDENCE and len(header) * 2 >= widths.most_common(1)[0][0]


@dataclass(frozen=True, slots=True)
class _Column:
    """The non-NULL cells below a cell of the first record, and their type."""

    cells: Sequence[str]
    type: BaseType

    @classmethod
    def below(cls, data: Sequence[Cells], position: int) -> Self:
        facts = ColumnFacts()
        cells: list[str] = []
        for cell in (record[position] for record in data if len(record) > position):
            known = cell_facts(cell)
            facts.add_facts(known)
            if known.kind is not CellKind.NULL:
                cells.append(cell)
        base = column_type(facts, is_whole=False).base
        if base is BaseType.STRING:
            # Detected formats and null words may reveal another type.
            base = column_type(profile_column(cells).facts, is_whole=False).base
        return cls([cell.strip(BLANKS) for cell in cells], base)


def _are_header_values(header: Cells, kinds: Sequence[CellKind], columns: Sequence[_Column]) -> bool:
    """Return whether the dates, times and numbers in the first record are column names (Contract importer 11.2)."""
    by_kind = [place for place, kind in enumerate(kinds) if kind not in {CellKind.NULL, CellKind.TEXT}]
    dates = [place for place in by_kind if kinds[place] in _TEMPORAL]
    if dates:
        return len(dates) == len(by_kind) and _are_header_dates(header, dates, columns)
    texts = [place for place, kind in enumerate(kinds) if kind is CellKind.TEXT]
    if not texts and not (header and kinds[0] is CellKind.NULL and columns[0].type is BaseType.STRING):
        return False
    if any(kinds[place] is not CellKind.INTEGER for place in by_kind):
        return False
    return _are_header_years([header[place] for place in by_kind], [columns[place] for place in by_kind]) or (
        _have_equal_steps([int(header[place]) for place in by_kind])
        and any(
            columns[place].type is BaseType.STRING
            and _column_evidence(header[place].strip(BLANKS), columns[place].cells) > 0
            for place in texts
        )
    )


def _are_header_dates(header: Cells, dates: Sequence[int], columns: Sequence[_Column]) -> bool:
    """Return whether dates in the first record are column names.

    Dates are column names if at least one of them is above numbers, or if several in sequence are above text. Empty
    columns are ignored.
    """
    types = {columns[place].type for place in dates}
    if types <= _NUMBERS | {BaseType.NULL} and types & _NUMBERS:
        return True
    if not types <= _NUMBERS | {BaseType.NULL, BaseType.STRING} or BaseType.STRING not in types:
        return False
    texts = [header[place].strip(BLANKS) for place in dates]
    is_dated = any(classify(cell) in _TEMPORAL for place in dates for cell in columns[place].cells)
    return len(dates) > 1 and not is_dated and (texts == sorted(texts) or texts == sorted(texts, reverse=True))


def _are_header_years(names: Sequence[str], columns: Sequence[_Column]) -> bool:
    """Return whether integers in the first record are years in sequence, above values that are mostly not years.

    At least two years are required, because a single one may be a value.
    """
    years = [int(name) for name in names]
    if len(years) < 2 or not all(year in _YEARS for year in years):
        return False
    steps = [later - earlier for earlier, later in pairwise(years)]
    return (min(steps) > 0 or max(steps) < 0) and all(_are_mostly_not_years(column.cells) for column in columns)


def _are_mostly_not_years(values: Sequence[str]) -> bool:
    years = sum(len(value) == 4 and value.isdecimal() and int(value) in _YEARS for value in values)
    return years * 2 <= len(values)


def _have_equal_steps(numbers: Sequence[int]) -> bool:
    """Return whether the numbers ascend in equal steps, as hours, ages or days of the month do."""
    steps = {later - earlier for earlier, later in pairwise(numbers)}
    return len(numbers) >= _MIN_STEPS and len(steps) == 1 and min(steps) > 0


def _column_evidence(header: str, cells: Sequence[str]) -> float:
    """Return the evidence from a text column for a header. A negative number is evidence against it."""
    if header in cells:
        return -1
    words = column_word_share(header)
    if words:
        below = sum(column_word_share(cell) > 0 for cell in cells) / len(cells)
        if below <= _MAX_WORD_CELL_SHARE:
            return 1 if words >= _MIN_WORD_SHARE else max(0.5 - below, header_evidence(header, cells))
    return header_evidence(header, cells)


def numbered_names(width: int) -> Sequence[str]:
    """Return the names `column_1`, `column_2`, …, for files without a header."""
    return [f"column_{position}" for position in range(1, width + 1)]


def header_names(header: Cells, width: int) -> Sequence[str]:
    """Derive a name for each column from the header. The names are distinct, even ignoring case.

    The first column with a name keeps it. Later columns with the same name get the lowest suffix `_2`, `_3`, … that
    makes the name different from all others, including names of columns further right.
    """
    cells = [*header[:width], *[""] * (width - len(header))]
    cleaned = [_LINE_BREAKS.sub(" ", str(cell).strip()).strip()[:MAX_NAME_CHARACTERS].rstrip() for cell in cells]
    wanted = [cell or f"column_{position}" for position, cell in enumerate(cleaned, 1)]
    taken = {name.lower() for name in wanted}
    seen: set[str] = set()
    tried: dict[str, int] = {}
    names: list[str] = []
    for name in wanted:
        names.append(_free_name(name, taken, tried) if name.lower() in seen else name)
        seen.add(name.lower())
    return names


def _free_name(name: str, taken: set[str], tried: dict[str, int]) -> str:
    """Return and reserve the name with the lowest free suffix. `tried` has the highest suffix tried so far, by name."""
    number = tried.get(name.lower(), 1)
    while True:
        number += 1
        suffix = f"_{number}"
        numbered = name[: MAX_NAME_CHARACTERS - len(suffix)] + suffix
        if numbered.lower() not in taken:
            break
    tried[name.lower()] = number
    taken.add(numbered.lower())
    return numbered
