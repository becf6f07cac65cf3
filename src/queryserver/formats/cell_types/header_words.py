"""Words that name columns in many languages (Contract importer 11)."""

import re
import unicodedata
from functools import cache

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
_WHOLE = """
    姓名 名字 姓氏 名称 名稱 编号 編號 编码 地址 城市 省份 国家 國家 地区 地區 街道 公司 客户 客戶 职业 邮箱
    电话 電話 手机 颜色 状态 狀態
    类别 類別 类型 分类 产品 產品 商品 部门 部門 数量 價格 价格 单价 金额 日期 时间 备注 備註 单位 性别 年龄

    氏名 名前 顧客 住所 都道府県 市区町村 会社 職業 メール 分類 商品 部署 数量 価格 単価 日付 備考 番号
    性別 年齢 種別 区分 国名

    이름 성명 고객 주소 도시 지역 국가 회사 직업 이메일 전화 색상 상태 분류 상품 제품 부서 수량 가격 금액 날짜
    번호 비고 성별 나이 코드
"""
"""Of scripts without blanks between words: a cell has one if it holds it."""

_FEWEST_LETTERS = 2
_LETTER_RUN = re.compile(r"[^\W\d_]+")
_LOWER_TO_UPPER = re.compile(r"(?<=[a-z])(?=[A-Z])")


def common_words(cell: str) -> float:
    """The share of its words that name columns. An upper case letter behind a lower case one begins a word, too."""
    words, parts = _words()
    if any(part in cell for part in parts):
        return 1.0
    found = [part.lower() for run in _LETTER_RUN.findall(unfolded(cell)) for part in _LOWER_TO_UPPER.split(run)]
    return sum(word in words for word in found) / len(found) if found else 0.0


def unfolded(text: str) -> str:
    """The text with Latin letters that have no accents."""
    if text.isascii():
        return text
    text = text.replace("ß", "ss").replace("\u0131", "i").replace("ł", "l").replace("Ł", "L").replace("ø", "o")
    return "".join(letters[0] if (letters := unicodedata.normalize("NFD", one))[0].isascii() else one for one in text)


@cache
def _words() -> tuple[frozenset[str], tuple[str, ...]]:
    return frozenset(f"{_ENGLISH} {_LATIN} {_CYRILLIC} {_GREEK}".split()), tuple(dict.fromkeys(_WHOLE.split()))
