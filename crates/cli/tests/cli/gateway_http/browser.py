"""A real browser at the gateway's page: `browser.py CHROMIUM URL FOLDER`. Commands come as lines of JSON on standard input, answers go out.

Chromium is driven by the DevTools protocol over two pipes, so nothing but Python's own library is needed. It has no network: every
name resolves to nothing, and only the gateway's address is one.
"""

import base64
import json
import os
import subprocess
import sys
import threading


class Browser:
    def __init__(self, program, folder):
        to_read, self.to_write = os.pipe()
        self.to_hear, from_write = os.pipe()
        flags = [
            "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-first-run", "--disable-extensions",
            "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", f"--user-data-dir={folder}", "--remote-debugging-pipe", "about:blank",
        ]

        def places():
            # Chromium reads commands from 3 and answers on 4. Both may be among the numbers of the pipes.
            read, write = os.dup(to_read), os.dup(from_write)
            while read in (3, 4) or write in (3, 4):
                read, write = os.dup(read), os.dup(write)
            os.dup2(read, 3)
            os.dup2(write, 4)

        self.process = subprocess.Popen(
            [program, *flags], preexec_fn=places, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_read)
        os.close(from_write)
        self.next, self.answers, self.said, self.session = 0, {}, [], None
        self.heard = threading.Condition()
        threading.Thread(target=self.hear, daemon=True).start()
        target = self.ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        self.session = self.ask("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def hear(self):
        rest = b""
        while some := os.read(self.to_hear, 1 << 16):
            *messages, rest = (rest + some).split(b"\0")
            for message in map(json.loads, messages):
                with self.heard:
                    if "id" in message:
                        self.answers[message["id"]] = message
                    else:
                        self.note(message["method"], message["params"])
                    self.heard.notify_all()

    def note(self, method, params):
        """What a developer would see in the console, and what was asked for over the network."""
        if method == "Runtime.exceptionThrown":
            self.said.append({"exception": params["exceptionDetails"]["text"]})
        elif method == "Runtime.consoleAPICalled":
            self.said.append({"console": [value.get("value") for value in params["args"]]})
        elif method == "Log.entryAdded":
            self.said.append({"log": params["entry"]["text"]})
        elif method == "Network.requestWillBeSent":
            self.said.append({"request": params["request"]["url"]})
        elif method == "Page.javascriptDialogOpening":
            self.said.append({"dialog": params["message"]})

    def ask(self, method, params=None):
        with self.heard:
            self.next += 1
            number = self.next
            message = {"id": number, "method": method, "params": params or {}}
            if self.session:
                message["sessionId"] = self.session
            os.write(self.to_write, json.dumps(message).encode() + b"\0")
            if not self.heard.wait_for(lambda: number in self.answers, timeout=50):
                raise SystemExit(f"no answer to {method}")
            answer = self.answers.pop(number)
        if "error" in answer:
            raise SystemExit(f"{method}: {answer['error']}")
        return answer["result"]

    def evaluate(self, script):
        answer = self.ask("Runtime.evaluate", {"expression": script, "returnByValue": True, "awaitPromise": True})
        if "exceptionDetails" in answer:
            return {"thrown": answer["exceptionDetails"].get("exception", {}).get("description", "")}
        return answer["result"].get("value")


def main():
    program, url, folder = sys.argv[1:4]
    browser = Browser(program, folder)
    for line in sys.stdin:
        command = json.loads(line)
        match command.pop("do"):
            case "open":
                browser.ask("Page.navigate", {"url": command.get("url", url) + command.get("path", "/")})
                answer = None
            case "view":
                dark = [{"name": "prefers-color-scheme", "value": "dark" if command.pop("dark", False) else "light"}]
                browser.ask("Emulation.setEmulatedMedia", {"features": dark})
                browser.ask("Emulation.setDeviceMetricsOverride", {"deviceScaleFactor": 1, "mobile": False, **command})
                answer = None
            case "evaluate":
                answer = browser.evaluate(command["script"])
            case "said":
                with browser.heard:
                    answer, browser.said = browser.said, []
            case "picture":
                shot = browser.ask("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": command.get("whole", False)})
                with open(command["file"], "wb") as file:
                    file.write(base64.b64decode(shot["data"]))
                answer = None
        print(json.dumps(answer), flush=True)
    browser.ask("Browser.close")
    browser.process.wait(20)


main()
