package cow

import (
	"context"

	"yoi.dev/yoi-runtime/policy"
)

// elsewhere is a strategy whose work another package does. It is in the table
// so that Choose, doctor and evidence know one list of names.
type elsewhere struct {
	name policy.StrategyName
	who  string
}

func (s elsewhere) Name() policy.StrategyName { return s.name }

func (s elsewhere) Probe(context.Context, ProbeDir) Support {
	return Support{OK: true, Reason: s.who}
}

func (s elsewhere) Materialize(context.Context, Request) (Result, error) {
	return Result{}, policy.Errorf(policy.CodeInternal, "cow."+string(s.name),
		"the strategy %s was handed to the package that does not make it", s.name)
}

// notHere is a strategy of another platform.
type notHere struct {
	name policy.StrategyName
	why  string
}

func (s notHere) Name() policy.StrategyName { return s.name }

func (s notHere) Probe(context.Context, ProbeDir) Support { return Support{Reason: s.why} }

func (s notHere) Materialize(context.Context, Request) (Result, error) {
	return Result{}, policy.Errorf(policy.CodeStrategyUnsupported, "cow."+string(s.name), "%s", s.why)
}
