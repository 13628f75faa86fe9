from collections.abc import Mapping

import pytest
from fastapi.testclient import TestClient

from keel.studio.guard import MAX_BODY
from keel.studio.server import create_app
from keel.studio.workspace import Workspace

HOST = "127.0.0.1:8411"
TOKEN = {"Authorization": "Bearer secret"}


@pytest.fixture
def client() -> TestClient:
    app = create_app(Workspace(), token="secret", hosts={HOST}, cookie="keel-8411")
    return TestClient(app, base_url=f"http://{HOST}", follow_redirects=False)


def test_data_needs_the_token(client: TestClient) -> None:
    assert client.get("/api/claims").status_code == 401
    assert client.get("/reports/anything").status_code == 401
    assert client.get("/api/claims", headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert client.get("/api/claims", headers={"Cookie": "keel-8411=wrong"}).status_code == 401
    assert client.get("/api/claims", headers=TOKEN).status_code == 200


def test_the_address_with_the_token_sets_a_cookie_and_keeps_the_view(client: TestClient) -> None:
    answer = client.get("/attention?model=chinese&token=secret&text=a%20b")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/attention?model=chinese&text=a+b"
    cookie = answer.headers["set-cookie"]
    assert "httponly" in cookie.lower()
    assert "samesite=strict" in cookie.lower()
    client.cookies.set("keel-8411", "secret")
    assert client.get("/api/claims").status_code == 200


def test_the_redirect_stays_on_this_server(client: TestClient) -> None:
    assert client.get(f"http://{HOST}//elsewhere.example/?token=secret").headers["location"] == "/elsewhere.example/"


def test_a_wrong_token_in_the_address_is_refused(client: TestClient) -> None:
    assert client.get("/?token=guess").status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "attacker.example"},  # DNS rebinding
        {"Host": "127.0.0.1:9999"},
        {"Origin": "http://attacker.example"},
        {"Origin": "null"},
        {"Origin": "https://127.0.0.1:8411"},
    ],
)
def test_other_hosts_and_origins_are_refused(client: TestClient, headers: Mapping[str, str]) -> None:
    assert client.get("/api/claims", headers={**TOKEN, **headers}).status_code == 403


def test_own_origin_is_accepted(client: TestClient) -> None:
    assert client.get("/api/claims", headers={**TOKEN, "Origin": f"http://{HOST}"}).status_code == 200


def test_bodies_are_bounded(client: TestClient) -> None:
    large = client.post("/api/fill", headers=TOKEN, content=b"x" * (MAX_BODY + 1))
    assert large.status_code == 413
    assert "shorter" in large.json()["error"]

    def endless():
        yield b"x"

    assert client.post("/api/fill", headers=TOKEN, content=endless()).status_code == 411


def test_every_answer_has_the_security_policy(client: TestClient) -> None:
    for answer in (client.get("/api/claims"), client.get("/api/claims", headers=TOKEN)):
        assert answer.headers["content-security-policy"].startswith("default-src 'self';")
        assert answer.headers["x-content-type-options"] == "nosniff"
