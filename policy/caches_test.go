package policy

import (
	"errors"
	"strings"
	"testing"
)

func TestParseDependencyCache(t *testing.T) {
	for _, c := range []struct {
		in, path string
		keys     int
	}{
		{"node_modules=package-lock.json", "node_modules", 1},
		{"web/node_modules/=web/package-lock.json,web/package.json", "web/node_modules", 2},
		{".venv=a/../a", "", 0},
		{"", "", 0}, {"=x", "", 0}, {"a=", "", 0}, {"a", "", 0}, {".=x", "", 0},
		{"/a=x", "", 0}, {"../a=x", "", 0}, {"a/../../b=x", "", 0}, {"a//b=x", "", 0}, {"./a=x", "", 0},
		{".git=x", "", 0}, {"a/.GIT/b=x", "", 0}, {"a=.git/config", "", 0}, {"a=/etc/passwd", "", 0}, {"a=../x", "", 0},
		{"a=a", "", 0}, {"a=a/lock", "", 0}, {"a\x00=x", "", 0}, {"a\n=x", "", 0}, {"a=x,", "", 0},
		{strings.Repeat("n", 256) + "=x", "", 0}, {strings.Repeat("n/", 600) + "n=x", "", 0},
		{"a=" + strings.Repeat("x,", 40) + "x", "", 0},
	} {
		got, err := ParseDependencyCache(c.in)
		if c.keys == 0 {
			if !errors.Is(err, CodePolicyInvalid) {
				t.Errorf("%q: %+v, %v", c.in, got, err)
			}
		} else if err != nil || got.Path != c.path || len(got.Key) != c.keys {
			t.Errorf("%q: %+v, %v", c.in, got, err)
		}
	}
}

func TestValidateCaches(t *testing.T) {
	cache := func(p string) DependencyCache { return DependencyCache{Path: p, Key: []string{"lock"}} }
	for _, c := range []struct {
		in []DependencyCache
		ok bool
	}{
		{nil, true},
		{[]DependencyCache{cache("a"), cache("b"), cache("a-b")}, true},
		{[]DependencyCache{cache("a"), cache("a")}, false},
		{[]DependencyCache{cache("a/b"), cache("a")}, false},
		{[]DependencyCache{cache("a"), cache("a/b/c")}, false},
		{make([]DependencyCache, 17), false},
	} {
		if err := ValidateCaches(c.in); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c.in, err)
		}
	}
}

func TestQuotaValidate(t *testing.T) {
	for _, c := range []struct {
		in Quota
		ok bool
	}{
		{Quota{}, true}, {Quota{Bytes: 64 << 10}, true}, {Quota{Inodes: 16}, true}, {Quota{Bytes: 1 << 60, Inodes: 1 << 40, Hard: true}, true},
		{Quota{Bytes: 1}, false}, {Quota{Bytes: -1}, false}, {Quota{Bytes: 1<<60 + 1}, false},
		{Quota{Inodes: 1}, false}, {Quota{Inodes: -1}, false}, {Quota{Inodes: 1<<40 + 1}, false}, {Quota{Hard: true}, false},
	} {
		if err := c.in.Validate(); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c.in, err)
		}
	}
}

// FuzzParseDependencyCache: what is accepted never leaves the repository.
func FuzzParseDependencyCache(f *testing.F) {
	for _, s := range []string{"node_modules=package-lock.json", "a/b=c,d/e", "../x=y", "a=../../etc/passwd", ".git=x", "\xff=x", "a/./b=x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c, err := ParseDependencyCache(s)
		if err != nil {
			return
		}
		for _, p := range append([]string{c.Path}, c.Key...) {
			if p == "" || p[0] == '/' || strings.Contains("/"+p+"/", "/../") || strings.Contains("/"+strings.ToLower(p)+"/", "/.git/") || strings.ContainsRune(p, 0) {
				t.Errorf("%q was accepted with %q", s, p)
			}
		}
	})
}
