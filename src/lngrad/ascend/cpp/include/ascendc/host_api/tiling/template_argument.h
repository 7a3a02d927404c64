// The marks by which an operator lists its template arguments for the operator build. They declare nothing here.
#ifndef LNGRAD_TEMPLATE_ARGUMENT_H
#define LNGRAD_TEMPLATE_ARGUMENT_H

#define ASCENDC_TPL_ARGS_DECL(...) static_assert(true, "")
#define ASCENDC_TPL_SEL(...) static_assert(true, "")

#endif
