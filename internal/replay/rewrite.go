//go:build attacktest

package replay

import "unsafe"

// Step is one operation as Rewrite shows it. An argument that is an earlier
// result reads as 0.
type Step struct {
	NR   uintptr
	Args [6]uint64
}

// Rewrite is for the attack suite, which takes protections out of a finished
// program to see that its attacks succeed then. f returns what to do instead, and
// whether to; every answer of such a call is taken.
func (p *Program) Rewrite(f func(s Step) (Step, bool)) {
	for i := range p.ops {
		o := &p.ops[i]
		if o.flags&(flagFork|flagMark) != 0 {
			continue
		}
		s, changed := f(Step{uintptr(o.nr), o.args})
		if !changed {
			continue
		}
		o.nr, o.args, o.skip = uint64(s.NR), s.Args, 0
		o.flags = o.flags&^flagCheck | flagTolerant
	}
}

// Text is the string at an address of the program.
func (p *Program) Text(address uint64) string {
	start := p.pointer(Arg{v: address})
	if start == nil {
		return ""
	}
	n := 0
	for n < chunkSize && *(*byte)(unsafe.Add(start, n)) != 0 {
		n++
	}
	return string(unsafe.Slice((*byte)(start), n))
}
