"""The pages and their files as they are sent: policy, versions, compression, the root (Contract platform 9.4)."""

import gzip
import re

import httpx
import pytest
from tests.api.conftest import ApiOpener
from tests.api.driving import Api

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"
POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
_LINK = re.compile(r"(?:href|src)=\"([^\"#]+)[^\"]*\"")


async def fetched(api: Api, path: str, **headers: str) -> httpx.Response:
    return await api.http.get(path, headers=headers)


async def pages(api: Api) -> dict[str, httpx.Response]:
    found = {path: await fetched(api, path) for path in ("/api/docs", "/api/docs/", "/api/swagger")}
    return found | {"/": await fetched(api, "/", Accept=BROWSER)}


@pytest.mark.platform(101)
async def test_pages_load_everything_from_this_server_and_nothing_inline(api: Api):
    for path, page in (await pages(api)).items():
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8"), path
        assert page.headers["content-security-policy"] == POLICY
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["referrer-policy"] == "no-referrer"
        assert "://" not in page.text
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=|<script(?![^>]*\ssrc=)", page.text)
        links = _LINK.findall(page.text)
        assert len(links) > 5
        for link in links:
            found = await fetched(api, link.replace("&amp;", "&"), Accept=BROWSER)
            assert found.status_code == 200, link
            if "/api/docs/" in link:
                assert found.headers["content-security-policy"] == POLICY
                assert found.headers["cache-control"] == "public, max-age=31536000, immutable"


async def test_files_have_their_types_and_versions(api: Api):
    types = {
        "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
        "swagger-ui.css": "text/css; charset=utf-8",
        "docs.js": "text/javascript; charset=utf-8",
        "icon.svg": "image/svg+xml",
    }
    for name, media_type in types.items():
        path = f"/api/docs/{name}"
        plain = await fetched(api, path, **{"Accept-Encoding": "identity"})
        packed = await fetched(api, path, **{"Accept-Encoding": "br;q=1, gzip;q=0.8"})
        assert plain.headers["content-type"] == packed.headers["content-type"] == media_type
        assert "content-encoding" not in plain.headers
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.content == plain.content
        assert packed.headers["vary"] == plain.headers["vary"] == "Accept-Encoding"
        # Another version under the same name must be seen at the next visit.
        assert plain.headers["cache-control"] == "no-cache"
        assert plain.headers["etag"] != packed.headers["etag"]
        for known, encoding in ((plain, "identity"), (packed, "gzip")):
            for given in (known.headers["etag"], f'"x", W/{known.headers["etag"]}', "*"):
                again = await fetched(api, path, **{"If-None-Match": given, "Accept-Encoding": encoding})
                assert (again.status_code, again.content) == (304, b""), given
                assert again.headers["etag"] == known.headers["etag"]
        assert (await fetched(api, path, **{"If-None-Match": '"x"'})).status_code == 200
        refused = await fetched(api, path, **{"Accept-Encoding": "gzip;q=0, *"})
        assert "content-encoding" not in refused.headers
        assert (await fetched(api, f"{path}?v=0")).headers["cache-control"] == "no-cache"
    for name in ("docs.html", "root.html", "index.html", "..%2Fdocs.js", "__init__.py", ""):
        answer = await fetched(api, f"/api/docs/{name}")
        assert answer.status_code == (404 if name else 200), name


async def test_the_description_is_sent_compressed_and_once(api: Api):
    for path in ("/api/schema", "/api/schema?format=yaml", "/api/v1/openapi.json"):
        async with api.http.stream("GET", path, headers={"Accept-Encoding": "gzip"}) as answer:
            sent = b"".join([piece async for piece in answer.aiter_raw()])
        assert answer.headers["content-encoding"] == "gzip"
        plain = await fetched(api, path, **{"Accept-Encoding": "identity"})
        assert gzip.decompress(sent) == plain.content
        assert len(sent) * 5 < len(plain.content)
        # /api/schema is JSON or YAML by `Accept`; the other path has one form.
        assert ("Accept," in plain.headers["vary"]) is path.startswith("/api/schema")
        again = await fetched(api, path, **{"Accept-Encoding": "identity", "If-None-Match": plain.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


async def test_browsers_get_a_page_at_the_root_and_programs_what_they_got_before(api: Api):
    browsers = (BROWSER, "text/html", "application/xhtml+xml", "application/json;q=0.5, TEXT/HTML; q=0.9")
    programs = (
        "*/*",
        "application/json",
        "",
        "text/plain",
        "text/*",
        "text/html;q=0",
        "application/json, text/html;q=0.5",
    )
    for accept in browsers:
        page = await fetched(api, "/", Accept=accept)
        assert (page.status_code, page.headers["vary"]) == (200, "Accept, Accept-Encoding"), accept
        head = await api.http.head("/", headers={"Accept": accept})
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == page.headers["content-length"]
    for accept in programs:
        answer = await fetched(api, "/", Accept=accept)
        assert answer.json() == {"status": -1, "code": "not_found", "message": "Not found."}
        assert (answer.status_code, answer.headers["vary"]) == (404, "Accept"), accept
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert (await api.http.request(method, "/", headers={"Accept": BROWSER})).status_code == 404
    known = await fetched(api, "/", Accept=BROWSER)
    again = await fetched(api, "/", Accept=BROWSER, **{"If-None-Match": known.headers["etag"]})
    assert (again.status_code, again.headers["vary"]) == (304, "Accept, Accept-Encoding")


async def test_nothing_of_the_request_gets_into_the_root(api: Api):
    plain = await fetched(api, "/", Accept=BROWSER)
    for headers in (
        {"Host": "<script>alert(1)</script>"},
        {"X-Forwarded-Host": "evil.example"},
        {"Host": "evil.example"},
    ):
        assert (await fetched(api, "/?a=<b>", Accept=BROWSER, **headers)).content == plain.content


@pytest.mark.platform(101)
async def test_pages_follow_the_prefix_the_allowed_hosts_and_the_switch(small_api: ApiOpener):
    async with small_api(desktop={"url_prefix": "/sql", "allowed_hosts": "test"}) as api:
        for path in ("/sql", "/sql/", "/sql/api/docs"):
            page = await fetched(api, path, Accept=BROWSER)
            assert page.status_code == 200, path
            assert 'data-prefix="/sql"' in page.text
            for link in _LINK.findall(page.text):
                assert link.startswith("/sql/"), link
                assert (await fetched(api, link, Accept=BROWSER)).status_code == 200, link
            answer = await fetched(api, path, Accept=BROWSER, Host="evil.example")
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid_host")
        assert (await fetched(api, "/", Accept=BROWSER)).status_code == 404
    async with small_api(desktop={"docs_enabled": False}) as api:
        for path in ("/", "/api/docs", "/api/docs/root.css"):
            assert (await fetched(api, path, Accept=BROWSER)).status_code == 404
