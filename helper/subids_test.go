package helper

import (
	"fmt"
	"testing"
)

func TestSubIDs(t *testing.T) {
	for text, want := range map[string][2]uint32{
		"":                                    {},
		"ada:100000:65536\n":                  {100000, 65535},
		"bob:100000:65536\n":                  {},
		"1001:200000:1000\n":                  {200000, 1000},
		"ada:1:5\nada:300000:5000\nada:9:7\n": {300000, 5000},
		"ada:0:65536\n":                       {}, // root is nobody's subordinate
		"ada:4294967295:2\n":                  {},
		"ada:x:2\nada:3\n:::\n# ada:1:2\n":    {},
		"adam:100000:65536":                   {},
	} {
		base, count := subIDs(text, "ada", "1001")
		if got := [2]uint32{base, count}; got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

func TestMapsAround(t *testing.T) {
	for count, want := range map[uint32]string{
		1:     "[{0 100000 1} {1000 501 1}]",
		1000:  "[{0 100000 1000} {1000 501 1}]",
		1001:  "[{0 100000 1000} {1000 501 1} {1001 101000 1}]",
		65535: "[{0 100000 1000} {1000 501 1} {1001 101000 64535}]",
	} {
		if got := fmt.Sprint(mapsAround(501, 100000, count)); got != want {
			t.Errorf("%d: %s, want %s", count, got, want)
		}
	}
}
