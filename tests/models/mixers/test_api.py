"""The interface of mixers: what is not documented in a class is documented in the class that it inherits from."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

from recallkit.models import mixers


def test_every_public_method_has_documentation_of_its_own_or_inherits_it():
    modules = [importlib.import_module(f"{mixers.__name__}.{found.name}") for found in pkgutil.iter_modules(mixers.__path__)]
    classes = {each for module in modules for each in vars(module).values() if inspect.isclass(each) and each.__module__ == module.__name__}
    methods = {method for each in classes for name, method in vars(each).items() if inspect.isfunction(method) and not name.startswith("_")}
    assert len(methods) > 150
    assert [method.__qualname__ for method in methods if not inspect.getdoc(method)] == []
