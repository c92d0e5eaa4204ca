package runtime

import (
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pelletier/go-toml/v2"

	"yoi.dev/yoi-runtime/policy"
)

func TestParseConfig(t *testing.T) {
	for name, c := range map[string]struct {
		text, message string
	}{
		"empty":            {"", ""},
		"whole":            {"[defaults]\nstrategy='overlay'\ncleanup_policy='keep_for:1h'\nnetwork='none'\nseccomp='strict'\n[cache]\nmax_bytes=1000\nprotocols=['file']\n[sandbox]\nallow_host_network=true\n[id_pool]\nbase=600000\ncount=10\n", ""},
		"images":           {"[defaults]\nroot='image:base'\n[images]\ndriver='vfs'\nmax_bytes=1000\nmax_entries=10\n", ""},
		"image driver":     {"[images]\ndriver='aufs'\n", "images.driver"},
		"image limits":     {"[images]\nmax_bytes=-1\n", "images"},
		"root":             {"[defaults]\nroot='image:../x'\n", "defaults"},
		"unknown setting":  {"[cache]\nmax_byte=1\n", "line 2: no such setting"},
		"syntax":           {"[cache\n", "line 1"},
		"strategy":         {"[defaults]\nstrategy='magic'\n", "defaults.strategy"},
		"cleanup":          {"[defaults]\ncleanup_policy='never'\n", "defaults.cleanup_policy"},
		"network":          {"[defaults]\nnetwork='wifi'\n", "network mode"},
		"negative":         {"[cache]\nmax_bytes=-1\n", "negative"},
		"protocol":         {"[cache]\nprotocols=['ftp']\n", "ftp"},
		"pool too low":     {"[id_pool]\nbase=1000\n", "id pool"},
		"pool over 2^31":   {"[id_pool]\nbase=2147400000\ncount=10\n", "id pool"},
		"patches kept":     {"[cache]\npatches_unused_for='never'\n", ""},
		"patches for long": {"[cache]\npatches_unused_for='24h'\n", ""},
		"patches for ever": {"[cache]\npatches_unused_for='forever'\n", "patches_unused_for"},
		"patches no time":  {"[cache]\npatches_unused_for='0s'\n", "patches_unused_for"},
		"string for a int": {"[cache]\nmax_bytes='many'\n", "line 2"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseConfig([]byte(c.text))
			if c.message == "" {
				if err != nil {
					t.Fatalf("refused: %v", err)
				}
				return
			}
			if !errors.Is(err, policy.CodeConfigInvalid) || !strings.Contains(err.Error(), c.message) {
				t.Fatalf("err = %v, want %q", err, c.message)
			}
		})
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte("[defaults]\nstrategy='overlay'\n"))
	f.Add([]byte("[id_pool]\nbase=600000\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := ParseConfig(b)
		if err == nil && (c.Cache.MaxBytes <= 0 || c.pool().Validate() != nil) {
			t.Fatalf("accepted %+v", c)
		}
	})
}

func TestSnapshotLimits(t *testing.T) {
	c, err := ParseConfig([]byte("[snapshots]\nmax_files = 7\nstall_timeout = \"2s\"\n"))
	if err != nil {
		t.Fatal(err)
	}
	if l := c.snapshotLimits(); l.MaxFiles != 7 || l.StallTimeout != 2*time.Second || l.MaxBytes == 0 || l.MaxRatio == 0 {
		t.Errorf("%+v", l)
	}
	for _, bad := range []string{"max_bytes = -1", "max_ratio = \"x\"", "stall_timeout = \"soon\"", "stall_timeout = \"-1s\"", "max_size = 1"} {
		if _, err := ParseConfig([]byte("[snapshots]\n" + bad + "\n")); !errors.Is(err, policy.CodeConfigInvalid) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// The documentation's example is a configuration, with every setting that there is.
func TestDocumentedConfiguration(t *testing.T) {
	b, err := os.ReadFile("../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "```toml\n")
	example, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("there is no example")
	}
	if _, err := ParseConfig([]byte(example)); err != nil {
		t.Fatal(err)
	}
	var set map[string]map[string]any
	if err := toml.Unmarshal([]byte(example), &set); err != nil {
		t.Fatal(err)
	}
	sections := reflect.TypeFor[Config]()
	for i := range sections.NumField() {
		section := sections.Field(i)
		kind, there := section.Type, func(name string) bool { _, ok := set[section.Tag.Get("toml")][name]; return ok }
		if kind.Kind() == reflect.Map { // of names that are the operator's to choose
			kind, there = kind.Elem(), func(name string) bool {
				for _, entry := range set[section.Tag.Get("toml")] {
					if _, ok := entry.(map[string]any)[name]; ok {
						return true
					}
				}
				return false
			}
		}
		for _, f := range reflect.VisibleFields(kind) {
			name := f.Tag.Get("toml")
			if name == "" || name == "-" {
				continue
			}
			if !there(name) {
				t.Errorf("the setting %s.%s is not in it", section.Tag.Get("toml"), name)
			}
		}
	}
}
