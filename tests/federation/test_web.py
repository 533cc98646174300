"""The page that shows how a federation stands: what it serves, what it refuses, and what a browser makes of it."""

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import types
import urllib.request

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from partita.cli.status_table import amount
from partita.errors import InputError
from partita.federation import status
from partita.federation.serve import serve
from partita.federation.status import to_json
from partita.federation.web import Page
from support.clinics import HOSTILE, NAMES, current_status, federate, stopped
from support.weather import FaultyLink


@contextlib.contextmanager
def served(folder):
    """The page of a folder, while the block lasts."""
    with Page(lambda: current_status(folder)) as page:
        thread = threading.Thread(target=page.serve_forever)
        thread.start()
        try:
            yield page
        finally:
            page.shutdown()
            thread.join()


def ask(page, path="/", method="GET", **headers):
    """Status, headers and body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", page.server_port, timeout=30)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


def test_the_status_page_agrees_with_the_ledger(tmp_path, monkeypatch):
    stopped(tmp_path)
    monkeypatch.setattr(status, "time", types.SimpleNamespace(time=lambda: 2e9))
    with served(tmp_path) as page:
        code, headers, body = ask(page, "/status.json")
    assert (code, headers["Content-Type"]) == (200, "application/json; charset=utf-8")
    assert body == to_json(current_status(tmp_path))
    assert [member["name"] for member in json.loads(body)["members"]] == list(NAMES)


@pytest.mark.parametrize(
    ("path", "method", "headers", "code"),
    [
        ("/", "GET", {}, 200),
        ("/", "GET", {"Host": "localhost:9000"}, 200),
        ("/status.json", "GET", {"Host": "evil.example:80"}, 421),
        ("/", "GET", {"Host": "127.0.0.1.evil.example"}, 421),
        ("/", "GET", {"Host": ""}, 421),
        ("/ledger.sqlite", "GET", {}, 404),
        ("/../federation.toml", "GET", {}, 404),
        ("/status.json", "POST", {}, 501),
        ("/", "DELETE", {}, 501),
    ],
)
def test_only_two_local_paths_are_served_and_all_responses_have_security_headers(tmp_path, path, method, headers, code):
    stopped(tmp_path)
    with served(tmp_path) as page:
        found, answered, body = ask(page, path, method, **headers)
    assert found == code
    assert ("Clients" in body) == (code == 200)
    policy = answered["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert answered["X-Content-Type-Options"] == "nosniff"
    assert answered["Cross-Origin-Resource-Policy"] == "same-origin"
    assert answered["Cache-Control"] == "no-store"
    assert "Access-Control-Allow-Origin" not in answered


def test_the_page_listens_on_the_loopback_address_only(tmp_path):
    with served(tmp_path) as page, socket.socket() as other:
        assert page.server_address[0] == "127.0.0.1"
        # all of 127/8 is this machine: somebody who listened on every address would answer here
        assert other.connect_ex(("127.0.0.2", page.server_port)) != 0


def test_a_port_in_use_raises_an_error(tmp_path):
    with served(tmp_path) as page, pytest.raises(InputError, match=f"Port {page.server_port} cannot be used"):
        Page(lambda: current_status(tmp_path), page.server_port)


def test_before_the_run_has_begun_the_page_is_there_and_says_so(tmp_path):
    with served(tmp_path) as page:
        assert ask(page)[0] == 200
        code, _, body = ask(page, "/status.json")
    assert code == 503
    assert "start the run" in json.loads(body)["error"]


def test_the_command_serves_until_it_is_interrupted(tmp_path):
    federate(tmp_path)
    command = [sys.executable, "-m", "partita", "status", str(tmp_path), "--web"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            address = process.stdout.readline().split()[0]
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(address, timeout=30) as answer:
                assert "<title>partita</title>" in answer.read().decode()
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read() == "Stopped.\n"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    """Chromium without a window, and without anything it would ask the network for."""
    found = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    if None in found.values():
        report = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        report("There is no chromium with its chromedriver: apt-get install chromium chromium-driver.")
    options = webdriver.ChromeOptions()
    options.binary_location = found["chromium"]
    for flag in (
        "headless",
        "no-sandbox",
        "disable-gpu",
        "disable-quic",
        "disable-dev-shm-usage",
        "no-first-run",
        "no-proxy-server",
        "disable-background-networking",
        "disable-component-update",
        "disable-sync",
        f"user-data-dir={tmp_path_factory.mktemp('profile')}",
    ):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(found["chromedriver"]))
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium):
    """Chromium with an empty page and an empty log."""
    chromium.get("about:blank")
    chromium.get_log("browser")
    return chromium


def wait(browser, condition):
    """What the condition gives once it is true; the limit only ends a test that fails."""
    return WebDriverWait(browser, 60, poll_frequency=0.1).until(lambda _: condition())


def text(browser, identity):
    return browser.find_element(By.ID, identity).text


def points(browser, identity):
    return len(browser.find_elements(By.CSS_SELECTOR, f"#{identity} circle"))


def table(browser):
    """The cells of the table's rows."""
    rows = browser.find_elements(By.CSS_SELECTOR, "#members tr")
    return [[cell.text for cell in row.find_elements(By.CSS_SELECTOR, "th, td")] for row in rows]


def test_a_browser_shows_the_run_as_it_goes_on(tmp_path, browser):
    federation, link = stopped(tmp_path)
    with served(tmp_path) as page:
        browser.get(page.address)
        wait(browser, lambda: len(table(browser)) == len(NAMES))
        before = current_status(tmp_path)
        assert [row[0] for row in table(browser)] == list(NAMES)
        assert [row[6] for row in table(browser)] == [str(member.accepted) for member in before.members]
        assert text(browser, "message") == "The run has not ended."
        finite = [row for row in before.history if row["residual"] < float("inf")]
        assert 0 < points(browser, "residuals") == len(finite) < len(before.history)

        # a reload would forget this
        browser.execute_script("window.remembered = true")
        result = serve(tmp_path, federation, link)
        wait(browser, lambda: text(browser, "message") == f"The run has ended. {result.message}")
        assert browser.execute_script("return window.remembered")

        after = current_status(tmp_path)
        assert text(browser, "communications") == f"{after.communications:,}"
        assert text(browser, "free_energy") == f"{after.free_energy:,.2f}"
        assert text(browser, "traffic") == amount(after.traffic)
        assert [row[6:] for row in table(browser)] == [
            [str(count) for count in (member.accepted, member.refused, member.late, member.failed)]
            for member in after.members
        ]
        reported = [row for row in after.history if "reported_free_energy" in row]
        assert points(browser, "energies") == len(reported)
        assert points(browser, "residuals") > len(finite)
        assert len(browser.find_elements(By.CSS_SELECTOR, "#answers rect.accepted")) == 1 + len(NAMES)
        assert browser.get_log("browser") == []


def test_text_from_clients_is_escaped_in_the_browser(tmp_path, browser):
    stopped(tmp_path)
    with served(tmp_path) as page:
        browser.get(page.address)
        wait(browser, lambda: table(browser))
        assert text(browser, "troubles") == f"{NAMES[-1]}: a task failed: {HOSTILE.replace(chr(27), ' ')}"
        assert browser.find_elements(By.CSS_SELECTOR, "img, #troubles *:not(li)") == []
        assert browser.title == "clinics – partita"
        assert browser.get_log("browser") == []


def test_the_browser_shows_what_is_missing_and_recovers(tmp_path, browser):
    federation, clients = federate(tmp_path)
    with served(tmp_path) as page:
        browser.get(page.address)
        assert "start the run" in wait(browser, lambda: text(browser, "problem"))
        serve(tmp_path, federation, FaultyLink(clients))
        wait(browser, lambda: len(table(browser)) == len(NAMES))
        assert text(browser, "problem") == ""
    assert "no longer served" in wait(browser, lambda: text(browser, "problem"))
    assert len(table(browser)) == len(NAMES)
