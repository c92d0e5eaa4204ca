package helper

import (
	"fmt"
	"slices"
	"testing"

	"yoi.dev/yoi-runtime/ledger"
)

func TestWithout(t *testing.T) {
	list := func(ids ...int) (rs []ledger.Resource) {
		for _, id := range ids {
			rs = append(rs, ledger.Resource{ID: fmt.Sprint(id)})
		}
		return rs
	}
	var twenty []int
	for i := range 20 {
		twenty = append(twenty, i)
	}
	for _, c := range []struct{ from, out, want []int }{
		{nil, []int{1}, nil},
		{[]int{1, 2, 3}, nil, []int{1, 2, 3}},
		{[]int{1, 2, 3}, []int{3}, []int{1, 2}},
		{[]int{1, 2, 3}, []int{1, 9}, []int{2, 3}},
		{[]int{1, 2, 3}, []int{2, 3, 1}, nil},
		{twenty, twenty[2:18], []int{0, 1, 18, 19}},
	} {
		var ids []string
		for _, id := range c.out {
			ids = append(ids, fmt.Sprint(id))
		}
		got := without(list(c.from...), ids)
		if !slices.EqualFunc(got, list(c.want...), func(a, b ledger.Resource) bool { return a.ID == b.ID }) {
			t.Errorf("%v without %v is %v", c.from, c.out, got)
		}
	}
}
