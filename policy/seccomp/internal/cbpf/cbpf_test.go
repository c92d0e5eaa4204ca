package cbpf

import (
	"encoding/binary"
	"testing"
)

func assemble(ins ...instruction) []byte {
	var b []byte
	for _, i := range ins {
		b = binary.NativeEndian.AppendUint16(b, i.code)
		b = append(b, i.jt, i.jf)
		b = binary.NativeEndian.AppendUint32(b, i.k)
	}
	return b
}

func TestRun(t *testing.T) {
	d := Data{Nr: -2, Arch: 0xc000003e, IP: 1<<32 | 2, Args: [6]uint64{0x1111111122222222, 0, 0, 0, 0, 0x5555555566666666}}
	for name, c := range map[string]struct {
		k    uint32
		want uint32
	}{"nr": {0, 0xfffffffe}, "arch": {4, 0xc000003e}, "ip low": {8, 2}, "ip high": {12, 1},
		"arg 0 low": {16, 0x22222222}, "arg 0 high": {20, 0x11111111}, "arg 5 high": {60, 0x55555555}} {
		p, err := Decode(assemble(
			instruction{ldAbs, 0, 0, c.k}, instruction{jeq, 0, 1, c.want}, instruction{ret, 0, 0, 7}, instruction{ret, 0, 0, 8}))
		if err != nil {
			t.Fatal(err)
		}
		if v, steps, err := p.Run(d); v != 7 || steps != 3 || err != nil {
			t.Errorf("%s: %d after %d: %v", name, v, steps, err)
		}
	}
}

func TestJumps(t *testing.T) {
	for _, c := range []struct {
		op   uint16
		a, k uint32
		want bool
	}{{jeq, 5, 5, true}, {jeq, 5, 6, false}, {jgt, 6, 5, true}, {jgt, 5, 5, false}, {jge, 5, 5, true}, {jge, 4, 5, false},
		{jset, 6, 2, true}, {jset, 4, 2, false}, {jgt, 0xffffffff, 1, true}} {
		p := Program{{ldAbs, 0, 0, 0}, {and, 0, 0, 0xffffffff}, {c.op, 1, 0, c.k}, {ja, 0, 0, 1}, {ret, 0, 0, 1}, {ret, 0, 0, 2}}
		v, _, err := p.Run(Data{Nr: int32(c.a)})
		if err != nil || (v == 1) != c.want {
			t.Errorf("%#x %d %d: %d %v", c.op, c.a, c.k, v, err)
		}
	}
}

func TestBadPrograms(t *testing.T) {
	for _, b := range [][]byte{nil, {1, 2, 3}, make([]byte, 8*4097)} {
		if _, err := Decode(b); err == nil {
			t.Errorf("%d bytes decode", len(b))
		}
	}
	for name, p := range map[string]Program{"no end": {{ldAbs, 0, 0, 0}}, "unknown": {{0xffff, 0, 0, 0}},
		"unaligned": {{ldAbs, 0, 0, 3}, {ret, 0, 0, 0}}, "outside": {{ldAbs, 0, 0, 64}, {ret, 0, 0, 0}}} {
		if _, _, err := p.Run(Data{}); err == nil {
			t.Errorf("%s: a verdict", name)
		}
	}
}
