package gitcache

import (
	"slices"
	"testing"
)

func TestParseRefs(t *testing.T) {
	const a, b, c = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb", "cccccccccccccccccccccccccccccccccccccccc"
	lines := a + "  refs/heads/main\n" + b + "  refs/heads/fix/Ü-1\n" + c + " " + a + " refs/tags/v1\nbroken\n" + a + "  refs/heads/a{b\n"
	for _, tc := range []struct {
		part  string
		limit int
		want  []Ref
		more  bool
	}{
		{"", 10, []Ref{{"refs/heads/main", a}, {"refs/heads/fix/Ü-1", b}, {"refs/tags/v1", a}}, false},
		{"", 2, []Ref{{"refs/heads/main", a}, {"refs/heads/fix/Ü-1", b}}, true},
		{"FIX/", 10, []Ref{{"refs/heads/fix/Ü-1", b}}, false},
		{"heads", 10, nil, false},
	} {
		got, more := parseRefs(lines, tc.part, tc.limit)
		if !slices.Equal(got, tc.want) || more != tc.more {
			t.Errorf("%q, %d: %v, %t; want %v, %t", tc.part, tc.limit, got, more, tc.want, tc.more)
		}
	}
}
