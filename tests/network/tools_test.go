package network

import (
	"fmt"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// tools are what agents fetch things with, each as it comes.
const tools = `set -e
export SSL_CERT_FILE=$PWD/ca.pem GIT_SSL_CAINFO=$PWD/ca.pem CURL_CA_BUNDLE=$PWD/ca.pem npm_config_cafile=$PWD/ca.pem npm_config_fetch_retries=0 PIP_CERT=$PWD/ca.pem REQUESTS_CA_BUNDLE=$PWD/ca.pem
cd /scratch
git clone -q https://git.example/app.git && echo git $(cat app/README)
echo curl $(curl -sS https://web.example/) $(curl -sS http://web.example/) $(curl -sS https://a.wild.example/)
echo socks $(curl -sS --proxy $YOI_SOCKS_PROXY https://web.example/)
mkdir n && cd n && echo '{"name":"n","version":"1.0.0"}' >package.json
npm install --no-audit --no-fund --no-update-notifier --loglevel=error --registry https://npm.example left >/dev/null && echo npm $(node -p 'require("left/package.json").version')
cd .. && mkdir g && cd g && printf 'module g\n\ngo 1.21\n\nrequire outside.example/m v1.0.0\n' >go.mod
GOFLAGS=-mod=mod GOPROXY=https://go.example GONOSUMDB='*' GOTOOLCHAIN=local go mod download outside.example/m && echo go done
cd .. && /usr/bin/python3 -c 'import urllib.request as u; print("python", u.urlopen("https://web.example/").read().decode().strip())'
/usr/bin/python3 -m pip download -q --no-deps --no-cache-dir --disable-pip-version-check -d p --index-url https://pip.example/simple thing && echo pip $(ls p)
`

var toolLines = []string{"git hello", "curl https for web.example http for web.example https for a.wild.example", "socks https for web.example", "npm 1.0.0", "go done", "python https for web.example", "pip thing-1.0-py3-none-any.whl"}

func wantLines(t *testing.T, out string) {
	t.Helper()
	for _, line := range toolLines {
		if !strings.Contains(out, line+"\n") {
			t.Errorf("%q is not in:\n%s", line, out)
		}
	}
}

func TestTools(t *testing.T) {
	for _, uid := range []int{0, rig.Ordinary} {
		t.Run(fmt.Sprintf("uid %d", uid), func(t *testing.T) {
			w := newWorker(t, uid)
			before := rig.Before(t)
			r := w.yoi.Run(t, w.args(tools)...).Want(t, 0)
			wantLines(t, r.Stdout)
			if strings.Contains(r.Stderr, "egress_refused") {
				t.Errorf("something was refused: %s", r.Stderr)
			}
			before.Unchanged(t)
		})
	}
}

// Programs that know of no proxy find the names themselves.
func TestTransparent(t *testing.T) {
	for _, uid := range []int{0, rig.Ordinary} {
		t.Run(fmt.Sprintf("uid %d", uid), func(t *testing.T) {
			w := newWorker(t, uid)
			r := w.yoi.Run(t, w.args(`unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY npm_config_proxy npm_config_https_proxy
export CURL_CA_BUNDLE=$PWD/ca.pem GIT_SSL_CAINFO=$PWD/ca.pem
git clone -q https://git.example/app.git /scratch/app && echo git $(cat /scratch/app/README)
for u in https://web.example/ http://web.example/ https://a.wild.example/ http://b.wild.example/; do curl -sS $u; done
curl -sS --resolve other.example:443:127.18.0.1 https://other.example/ 2>&1 | tail -1
curl -sS -H 'Host: other.example' http://a.wild.example/; echo
curl -sS https://other.example/ 2>&1 | tail -1`, "--transparent", "--json")...).Want(t, 0)
			for _, line := range []string{"git hello", "https for web.example", "http for web.example", "https for a.wild.example", "http for b.wild.example"} {
				if !strings.Contains(r.Stderr, line+"\n") {
					t.Errorf("%q is not in:\n%s", line, r.Stderr)
				}
			}
			if strings.Contains(r.Stderr, "for other.example") {
				t.Errorf("another name was reached:\n%s", r.Stderr)
			}
			var ev runtime.Evidence
			r.JSON(t, &ev)
			if n := ev.Workers[0].Network; n == nil || n.Allowed < 5 || n.Refused != 2 {
				t.Errorf("network %+v", n)
			}
		})
	}
}
