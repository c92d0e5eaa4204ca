package runtime

import (
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/policy"
)

const policyTOML = `
seccomp = "strict"
seccomp_allow = ["remap_file_pages"]
require = ["landlock"]
[network]
mode = "none"
[limits]
wall_clock = "10m"
memory_max = "2G"
tasks = 512
[env]
CI = "1"
`

func TestParsePolicy(t *testing.T) {
	const asJSON = `{"seccomp": "strict", "seccomp_allow": ["remap_file_pages"], "require": ["landlock"], "network": {"mode": "none"},
		"limits": {"wall_clock": 600000000000, "memory_max": "2G", "tasks": 512}, "env": {"CI": "1"}}`
	want, err := ParsePolicy([]byte(policyTOML))
	if err != nil {
		t.Fatal(err)
	}
	if want.Limits.WallClock != 10*time.Minute || want.Limits.MemoryMax != 2<<30 || want.Root != policy.RootSystem || want.Env["CI"] != "1" {
		t.Errorf("%+v", want)
	}
	for _, text := range []string{asJSON, " \n" + asJSON + "\n"} {
		got, err := ParsePolicy([]byte(text))
		if err != nil || got.Digest() != want.Digest() {
			t.Errorf("JSON: %+v, %v", got, err)
		}
	}
	// The API's own encoding is a policy file.
	b, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ParsePolicy(b); err != nil || got.Digest() != want.Digest() {
		t.Errorf("its own encoding: %+v, %v", got, err)
	}
	if got, err := ParsePolicy(nil); err != nil || got.Digest() != (policy.SandboxPolicy{}).Digest() {
		t.Errorf("an empty file: %+v, %v", got, err)
	}
}

func TestParsePolicyRefuses(t *testing.T) {
	for _, text := range []string{
		"colour = 'blue'", "[limits]\nwall_clock = 'soon'", "[limits]\nmemory_max = 'lots'", "[limits]\ntasks = -1", "[limits]\ntasks = 1.5",
		"seccomp = ", "seccomp = 'none'", "seccomp = 5", "require = ['magic']", "require = ['landlock', 'landlock']", "env = 'A=B'", "root = '/'",
		"when = 1979-05-27", "[limits]\nunknown = 1", "{", "{}{}", `{"limits": {"wall_clock": 1e400}}`, "\xff", "[[limits]]",
	} {
		_, err := ParsePolicy([]byte(text))
		var d *policy.Diagnostic
		if err == nil || !errors.As(err, &d) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func FuzzParsePolicy(f *testing.F) {
	for _, s := range []string{policyTOML, "", "{}", `{"limits":{"wall_clock":"1h"}}`, "[env]\na = 1", "[quota]\ndisk_bytes = \"4G\"\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ParsePolicy(b)
		if err != nil {
			var d *policy.Diagnostic
			if !errors.As(err, &d) {
				t.Fatalf("an untyped error: %v", err)
			}
			return
		}
		// What is accepted is valid, and stays the same by the API's encoding.
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		again, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		if q, err := ParsePolicy(again); err != nil || q.Digest() != p.Digest() {
			t.Fatalf("%s: %v", again, err)
		}
	})
}

// The documentation's example is a policy, with every setting that there is.
func TestDocumentedPolicy(t *testing.T) {
	b, err := os.ReadFile("../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "## Sandbox policies")
	_, rest, _ = strings.Cut(rest, "```toml\n")
	example, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("there is no example")
	}
	p, err := ParsePolicy([]byte(example))
	if err != nil {
		t.Fatal(err)
	}
	limits := reflect.ValueOf(p.Limits)
	for i := range limits.NumField() {
		if name := limits.Type().Field(i).Name; limits.Field(i).IsZero() && name != "SwapMax" {
			t.Errorf("the limit %s is not in it", name)
		}
	}
}
