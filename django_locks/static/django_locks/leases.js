/* Counts remaining times down, by the monotonic clock from what the server said, and asks the server anew. */
"use strict";

(function () {
    const LONGEST_PAUSE = 300;  // seconds between two tries after errors
    const KEY = "django_locks.refresh";
    let seen = performance.now();  // when the server's numbers were true

    function describe(milliseconds) {
        const seconds = Math.max(0, milliseconds) / 1000;
        if (seconds < 10) {
            return `${seconds.toFixed(1)}\u00a0s`;
        }
        const whole = Math.round(seconds);
        for (const [unit, size, lesser, lesserSize] of
            [["d", 86400, "h", 3600], ["h", 3600, "min", 60], ["min", 60, "s", 1]]) {
            if (whole >= size) {
                const rest = Math.floor((whole % size) / lesserSize);
                const first = `${Math.floor(whole / size)}\u00a0${unit}`;
                return rest ? `${first}\u00a0${rest}\u00a0${lesser}` : first;
            }
        }
        return `${whole}\u00a0s`;
    }

    function say(element, text) {
        if (element.textContent !== text) {
            element.textContent = text;
        }
    }

    function tick() {
        const passed = performance.now() - seen;
        for (const element of document.querySelectorAll("[data-remaining-ms]")) {
            const left = Math.max(0, Number(element.dataset.remainingMs) - passed);
            say(element, describe(left));
            const bar = element.parentElement.querySelector("progress");
            if (bar) {
                bar.value = Math.min(left, bar.max);
            }
        }
        for (const element of document.querySelectorAll("[data-age-ms]")) {
            say(element, describe(Number(element.dataset.ageMs) + passed));
        }
    }

    function chosenKeys() {
        return new Set(Array.from(document.querySelectorAll("input[name=_selected_action]:checked"), (box) => box.value));
    }

    function replace(fresh) {
        const chosen = chosenKeys();
        const focused = document.activeElement && document.activeElement.id;
        for (const part of document.querySelectorAll("[data-live]")) {
            const other = fresh.querySelector(`[data-live="${part.dataset.live}"]`);
            if (other) {
                part.replaceWith(document.adoptNode(other));
            }
        }
        for (const box of document.querySelectorAll("input[type=checkbox][name=_selected_action]")) {
            box.checked = chosen.has(box.value);
        }
        const again = focused && document.getElementById(focused);
        if (again && again !== document.activeElement) {
            again.focus({preventScroll: true});
        }
    }

    class Refresher {
        constructor(panel) {
            this.panel = panel;
            this.every = panel.querySelector("select");
            this.status = panel.querySelector("[role=status]");
            this.failures = 0;
            this.timer = null;
            this.busy = false;
            this.every.value = this.remembered();
            this.every.addEventListener("change", () => this.changed());
            panel.querySelector("button").addEventListener("click", () => this.refresh());
            document.addEventListener("visibilitychange", () => this.shown());
            panel.hidden = false;
            this.plan();
        }

        remembered() {
            try {
                const value = localStorage.getItem(KEY);
                return ["0", "5", "30"].includes(value) ? value : "0";
            } catch (error) {
                return "0";  // storage is off: it is not remembered
            }
        }

        changed() {
            try {
                localStorage.setItem(KEY, this.every.value);
            } catch (error) {
                // as above
            }
            this.failures = 0;
            this.plan();
        }

        shown() {
            clearTimeout(this.timer);
            if (!document.hidden && this.every.value !== "0") {
                this.refresh();
            }
        }

        pause() {
            return Math.min(Number(this.every.value) * 2 ** this.failures, Math.max(LONGEST_PAUSE, this.every.value));
        }

        plan() {
            clearTimeout(this.timer);
            if (this.every.value !== "0" && !document.hidden) {
                this.timer = setTimeout(() => this.refresh(), this.pause() * 1000);
            }
        }

        async refresh() {
            if (this.busy) {
                return;
            }
            this.busy = true;
            try {
                await this.fetch();
                this.failures = 0;
                say(this.status, "");
            } catch (error) {
                this.failures += 1;
                const again = this.every.value === "0" ? "" : ` ${describe(this.pause() * 1000)}`;
                say(this.status, error.login ? this.panel.dataset.login : `${this.panel.dataset.failed}${again}`);
            } finally {
                this.busy = false;
                this.plan();
            }
        }

        async fetch() {
            const response = await fetch(location.href, {
                headers: {"X-Locks-Part": "live"},
                cache: "no-store",
                credentials: "same-origin",
                signal: AbortSignal.timeout ? AbortSignal.timeout(20000) : undefined,
            });
            if (response.redirected) {
                throw Object.assign(new Error("redirected"), {login: true});
            }
            if (!response.ok) {
                throw new Error(`HTTP ${response.status}`);
            }
            const received = performance.now();
            const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
            if (!fresh.querySelector("[data-live]")) {
                throw new Error("not the page of locks");
            }
            replace(fresh);
            seen = received;
            tick();
        }
    }

    function start() {
        const [navigation] = performance.getEntriesByType("navigation");
        seen = navigation && navigation.responseStart ? navigation.responseStart : performance.now();
        tick();
        setInterval(tick, 250);
        const panel = document.getElementById("locks-refresh");
        if (panel) {
            new Refresher(panel);
        }
        document.addEventListener("change", (event) => {
            if (event.target.id === "locks-all") {
                for (const box of document.querySelectorAll("input[type=checkbox][name=_selected_action]")) {
                    box.checked = event.target.checked;
                }
            }
        });
    }

    if (document.readyState === "loading") {
        document.addEventListener("DOMContentLoaded", start);
    } else {
        start();
    }
}());
