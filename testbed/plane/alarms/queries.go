package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// selector is a metric that a query reads, with the names of all labels of it on which the query relies.
type selector struct {
	Metric   string              `json:"metric"`
	Labels   []string            `json:"labels"`
	Matchers map[string][]string `json:"matchers"`
}

// query says what a query reads and which labels its result has. Without an aggregation these are all labels of a metric.
type query struct {
	Selectors []selector `json:"selectors"`
	Result    []string   `json:"result"`
	All       bool       `json:"all"`
}

// describe reads a list of queries and writes a description of each.
func describe(in io.Reader) error {
	var texts []string
	if err := json.NewDecoder(in).Decode(&texts); err != nil {
		return err
	}
	described := []query{}
	for _, text := range texts {
		expr, err := parser.NewParser(parser.Options{}).ParseExpr(text)
		if err != nil {
			return fmt.Errorf("%s: %w", text, err)
		}
		one := query{Selectors: []selector{}}
		collect(expr, nil, &one)
		if one.Result, one.All, err = result(expr); err != nil {
			return fmt.Errorf("%s: %w", text, err)
		}
		if one.Result == nil {
			one.Result = []string{}
		}
		described = append(described, one)
	}
	return json.NewEncoder(os.Stdout).Encode(described)
}

// collect adds the selectors below expr. used are the labels that expressions above it name.
func collect(expr parser.Node, used []string, into *query) {
	switch e := expr.(type) {
	case *parser.VectorSelector:
		found := selector{Labels: append([]string{}, used...), Matchers: map[string][]string{}}
		for _, m := range e.LabelMatchers {
			if m.Name == labels.MetricName && m.Type == labels.MatchEqual {
				found.Metric = m.Value
				continue
			}
			found.Labels = append(found.Labels, m.Name)
			if m.Type == labels.MatchEqual || m.Type == labels.MatchRegexp {
				found.Matchers[m.Name] = append(found.Matchers[m.Name], m.Value)
			}
		}
		slices.Sort(found.Labels)
		found.Labels = slices.Compact(found.Labels)
		into.Selectors = append(into.Selectors, found)
		return
	case *parser.AggregateExpr:
		used = slices.Concat(used, e.Grouping)
	case *parser.BinaryExpr:
		m := e.VectorMatching
		if m != nil && (e.Op == parser.LAND || e.Op == parser.LUNLESS) {
			// The result has labels of the left side only.
			collect(e.LHS, slices.Concat(used, m.MatchingLabels), into)
			collect(e.RHS, m.MatchingLabels, into)
			return
		}
		if m != nil {
			used = slices.Concat(used, m.MatchingLabels)
		}
	}
	for child := range parser.ChildrenIter(expr) {
		collect(child, used, into)
	}
}

// result says which labels the result of an expression has; all if it has all labels of a metric.
func result(expr parser.Expr) (names []string, all bool, err error) {
	switch e := expr.(type) {
	case *parser.ParenExpr:
		return result(e.Expr)
	case *parser.UnaryExpr:
		return result(e.Expr)
	case *parser.SubqueryExpr:
		return result(e.Expr)
	case *parser.VectorSelector, *parser.MatrixSelector:
		return nil, true, nil
	case *parser.NumberLiteral, *parser.StringLiteral:
		return nil, false, nil
	case *parser.AggregateExpr:
		switch {
		case e.Op == parser.TOPK || e.Op == parser.BOTTOMK:
			return result(e.Expr)
		case e.Without:
			return nil, false, fmt.Errorf("name the labels of the result: by, not without")
		}
		return e.Grouping, false, nil
	case *parser.Call:
		for _, arg := range e.Args {
			if arg.Type() != parser.ValueTypeVector && arg.Type() != parser.ValueTypeMatrix {
				continue
			}
			names, all, err = result(arg)
			names = slices.DeleteFunc(slices.Clone(names), func(name string) bool {
				return e.Func.Name == "histogram_quantile" && name == labels.BucketLabel
			})
			return names, all && e.Func.Name != "absent", err
		}
		return nil, false, nil
	case *parser.BinaryExpr:
		left, right := e.LHS, e.RHS
		if left.Type() == parser.ValueTypeScalar {
			left = right
		}
		m := e.VectorMatching
		if m == nil || m.Card == parser.CardManyToMany || !m.On {
			return result(left)
		}
		if m.Card != parser.CardOneToOne {
			return nil, false, fmt.Errorf("group_left and group_right are not described")
		}
		return m.MatchingLabels, false, nil
	}
	return nil, false, fmt.Errorf("%T is not described", expr)
}
