"""The admin's pages of locks, as a person with a browser meets them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry

from django_locks import history, locks
from django_locks.places import key_of
from tests.browser.conftest import POLICY, process, user_who_may, wait_for

LIST = "/admin/django_locks/lease/"
HOSTILE = "<img src=x onerror=alert(1)>\"'&{{7*7}}\u202e"


def lock_path(name: str) -> str:
    return f"{LIST}{key_of('default', name)}/change/"


def remaining(tab: Any) -> float:
    text = tab.text("[data-remaining-ms]").replace("\N{NO-BREAK SPACE}", " ")
    return float(re.match("([0-9.]+) s", text)[1])


def test_countdown_runs_by_itself(site: str, browser: Any, ada: Any) -> None:
    guard = locks.acquire("job", ttl=9, renew=False)
    with browser.page(site, ada) as tab:
        policy = tab(lambda page: page.goto(site + LIST).headers["content-security-policy"])
        assert policy == POLICY
        first = remaining(tab)
        bar = tab(lambda page: page.locator("progress").evaluate("bar => bar.value"))
        wait_for(lambda: remaining(tab) < first - 0.8)
        assert tab(lambda page: page.locator("progress").evaluate("bar => bar.value")) < bar
        assert abs(remaining(tab) - locks.get("job").remaining) < 1
        assert tab.errors == []
    guard.release()


def test_refresh_picks_up_a_lease_taken_meanwhile_and_keeps_the_choice(site: str, browser: Any, ada: Any) -> None:
    first = locks.acquire("first")
    with browser.page(site, ada) as tab:
        tab.open(LIST)
        tab(lambda page: page.check("input[name=_selected_action]"))
        second = locks.acquire("second")
        assert tab.count(".locks tbody tr") == 1
        tab(lambda page: page.select_option("#locks-every", "5"))
        tab(lambda page: page.wait_for_selector("text=second"))
        assert tab.count("input[name=_selected_action]:checked") == 1
        tab(lambda page: page.reload())
        assert tab(lambda page: page.input_value("#locks-every")) == "5", "it is remembered"
        first.release()
        second.release()
        tab(lambda page: page.click("#locks-now"))
        tab(lambda page: page.wait_for_selector("tr.locks-free >> nth=1"))
        assert tab.errors == []


def test_refresh_pauses_while_the_page_is_hidden_and_backs_off_on_errors(site: str, browser: Any, ada: Any) -> None:
    guard = locks.acquire("job")
    with browser.page(site, ada) as tab:
        asked: list[str] = []

        def count(route: Any) -> None:
            asked.append(route.request.url)
            route.abort() if len(asked) <= 2 else route.continue_()

        def prepare(page: Any) -> None:
            page.clock.install()
            page.goto(site + LIST)
            page.route(re.compile(".*"), count)
            page.select_option("#locks-every", "5")

        def hide(page: Any, hidden: bool) -> None:
            page.evaluate(
                """hidden => {
                    Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
                    document.dispatchEvent(new Event("visibilitychange"));
                }""",
                hidden,
            )

        def pass_time(seconds: int) -> int:
            tab(lambda page: page.clock.run_for(seconds * 1000))
            tab(lambda page: page.wait_for_timeout(150))
            return len(asked)

        tab(prepare)
        assert pass_time(6) == 1
        assert "Could not refresh; trying again in 10" in tab.text("#locks-status").replace("\N{NO-BREAK SPACE}", " ")
        assert pass_time(6) == 1, "not after five seconds again"
        assert pass_time(5) == 2
        assert pass_time(21) == 3
        wait_for(lambda: tab.text("#locks-status") == "")
        tab(lambda page: hide(page, True))
        assert pass_time(60) == 3
        tab(lambda page: hide(page, False))
        wait_for(lambda: tab.count("body") and len(asked) == 4)
    guard.release()


def test_break_with_a_reason_ends_in_lease_lost_in_a_live_process(
    site: str, browser: Any, ada: Any, settings: Any
) -> None:
    script = """
        guard = locks.acquire("cron:nightly", ttl=1.5)
        print("held", flush=True)
        while True:
            time.sleep(0.02)
            try:
                guard.check()
            except LeaseLost as lost:
                print("lost", flush=True)
                break
        history.flush()
    """
    with process(settings, script) as holder, browser.page(site, ada) as tab:
        assert holder.stdout.readline() == "held\n"
        wait_for(lambda: locks.get("cron:nightly").remaining > 1.4)
        tab.open(lock_path("cron:nightly"))
        tab(lambda page: page.click("button[value=break_lease]"))
        assert "it is alive" in tab.text(".locks-table") or "late" not in tab.text(".locks-table")
        tab(lambda page: page.click("button[name=confirmed]"))
        assert locks.get("cron:nightly"), "the browser asks for a reason"
        tab(lambda page: page.fill("#id_reason", "hung since 02:10"))
        tab(lambda page: page.click("button[name=confirmed]"))
        assert "Broke the lease of “cron:nightly”" in tab.text(".messagelist")
        assert holder.stdout.readline() == "lost\n"
        holder.wait(20)
        (entry,) = LogEntry.objects.all()
        assert "hung since 02:10" in entry.change_message
        wait_for(lambda: [run.outcome for run in history.runs("default", "cron:nightly")] == ["broken"])
        tab.open(lock_path("cron:nightly"))
        assert "hung since 02:10" in tab.text(".locks")
        assert tab.count("rect.locks-run-broken") == 1
        assert tab.errors == []


def test_user_without_the_permission_sees_no_button_and_gets_403(site: str, browser: Any) -> None:
    guard = locks.acquire("job")
    with browser.page(site, user_who_may("bob", "view_lease")) as tab:
        for path in (LIST, lock_path("job")):
            tab.open(path)
            assert tab.count(".locks button[name=action]") == 0
            assert tab.count("[name=_selected_action][type=checkbox]") == 0
        data = {"action": "break_lease", "confirmed": "1", "lease": f"{guard.fence}:{key_of('default', 'job')}"}
        status = tab(
            lambda page: page.evaluate(
                """async ([url, data]) => {
                    const token = document.querySelector("[name=csrfmiddlewaretoken]").value;
                    const body = new URLSearchParams({...data, csrfmiddlewaretoken: token});
                    return (await fetch(url, {method: "POST", body})).status;
                }""",
                [LIST, data],
            )
        )
        assert status == 403
    assert guard.release() is True


def test_hostile_names_are_shown_as_text(site: str, browser: Any, ada: Any, settings: Any) -> None:
    settings.LOCKS = {"default": {**settings.LOCKS["default"], "HOLDER": f"web{HOSTILE}"}}
    guard = locks.acquire(f"a{HOSTILE}")
    history.flush()
    shown = HOSTILE.replace("\u202e", "\\u202e")
    with browser.page(site, ada) as tab:
        for path in (LIST, lock_path(f"a{HOSTILE}")):
            tab.open(path)
            assert f"a{shown}" in tab.text(".locks")
            assert f"web{shown}" in tab.text(".locks")
            tab(lambda page: page.click("#locks-now"))
            tab(lambda page: page.wait_for_timeout(300))
            assert tab.count(".locks img, .locks script") == 0
        tab(lambda page: page.click("button[value=break_lease]"))
        assert f"a{shown}" in tab.text(".locks")
        tab(lambda page: page.fill("#id_reason", HOSTILE[:-1]))
        tab(lambda page: page.click("button[name=confirmed]"))
        assert f"a{shown}" in tab.text(".messagelist")
        tab.open(lock_path(f"a{HOSTILE}"))
        assert HOSTILE[:-1] in tab.text(".locks")
        assert tab.count("main img, main script, #content img") == 0
        assert tab.errors == []
    assert guard.release() is False


def test_everything_can_be_done_by_the_keyboard(site: str, browser: Any, ada: Any) -> None:
    guard = locks.acquire("job")
    with browser.page(site, ada) as tab:
        tab.open(LIST)

        def press_to(page: Any, selector: str) -> None:
            for _ in range(60):
                page.keyboard.press("Tab")
                if page.evaluate("selector => document.activeElement.matches(selector)", selector):
                    return
            raise AssertionError(f"the Tab key does not lead to {selector}")

        tab(lambda page: press_to(page, f"#pick-{key_of('default', 'job')}"))
        tab(lambda page: page.keyboard.press("Space"))
        tab(lambda page: page.focus("#locks-q"))
        tab(lambda page: press_to(page, "button[value=break_lease]"))
        tab(lambda page: page.keyboard.press("Enter"))
        tab(lambda page: page.wait_for_selector("#id_reason"))
        tab(lambda page: press_to(page, "#id_reason"))
        tab(lambda page: page.keyboard.type("by hand"))
        tab(lambda page: press_to(page, "button[name=confirmed]"))
        tab(lambda page: page.keyboard.press("Enter"))
        tab(lambda page: page.wait_for_selector(".messagelist"))
    assert guard.release() is False


@pytest.mark.parametrize("width", [320, 1280])
@pytest.mark.parametrize("language", ["en", "ar"])
def test_page_is_no_wider_than_the_window(
    width: int, language: str, site: str, browser: Any, ada: Any, settings: Any
) -> None:
    settings.LANGUAGE_CODE = language
    guard = locks.acquire("x" * 200)
    history.flush()
    with browser.page(site, ada, viewport={"width": width, "height": 700}) as tab:
        for path in (LIST, lock_path("x" * 200)):
            tab.open(path)
            assert tab(lambda page: page.evaluate("document.documentElement.scrollWidth")) <= width
            direction = tab(lambda page: page.evaluate("getComputedStyle(document.querySelector('.locks')).direction"))
            assert direction == ("rtl" if language == "ar" else "ltr")
    guard.release()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(scheme: Any, site: str, browser: Any, ada: Any) -> None:
    axe = Path(os.environ.get("AXE", "node_modules/axe-core/axe.min.js"))
    if not axe.exists():
        pytest.skip("axe-core is not here: npm install axe-core, or AXE=path/to/axe.min.js")
    guard = locks.acquire("job")
    locks.pause("stopped", 60, note="disk")
    locks.acquire("kept", at_least=60).release()
    locks.acquire("free").release()
    history.flush()
    with browser.page(site, ada, color_scheme=scheme, bypass_csp=True) as tab:

        def check(page: Any) -> list[str]:
            page.add_script_tag(content=axe.read_text())
            found = page.evaluate("axe.run('.locks')")["violations"]
            return [f"{each['id']} {[node['html'][:200] for node in each['nodes']]}" for each in found]

        for path in (LIST, lock_path("job")):
            tab.open(path)
            assert tab(check) == []
        tab(lambda page: page.click("button[value=break_lease]"))
        assert tab(check) == []
    guard.release()
