"""A throttled function is the function: it is called, bound, looked at and fails as before."""

import functools
import inspect
import operator
import pydoc
import sys
import threading
import traceback
import typing
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import headway
from headway import InvalidUse, Limiter, RateLimited, limiter_of
from headway.errors import InvalidArgument
from programs import worker

pytestmark = pytest.mark.both_forms

# The attributes that a throttled function has beyond its type are looked at here, and wrong calls are made.
throttle: Callable[..., Callable[[Any], Any]] = headway.throttle

PLENTY = "1000000000/s burst 1000000000"
# The quick way (one ledger), the slow ways (a key, several limits), and a permit that is held.
OPTIONS: dict[str, dict[str, Any]] = {
    "quick": {"limit": PLENTY},
    "held": {"limit": "100000/s"},
    "key": {"limit": PLENTY, "key": lambda *args, **kwargs: "k"},
    "several": {"limit": f"{PLENTY}; 1000 concurrent"},
    "skip": {"limit": PLENTY, "on_limit": "skip"},
    "settle": {"limit": PLENTY, "settle": lambda result: 1},
}


@pytest.fixture(params=OPTIONS)
def decorator(request):
    return throttle(**OPTIONS[request.param])


# Every kind of parameter, and calls right and wrong.
FUNCTIONS = [
    lambda: "nothing",
    lambda a: ("a", a),
    lambda a, b=2: ("ab", a, b),
    lambda a, /, b, *, c: ("positional only", a, b, c),
    lambda *args: ("args", args),
    lambda **kwargs: ("kwargs", kwargs),
    lambda a, *args, b=5, **kwargs: ("all", a, args, b, kwargs),
    lambda self, args=1, kwargs=2, *, permit=3, function=4: (self, args, kwargs, permit, function),
]
CALLS = [
    ((), {}),
    ((1,), {}),
    ((1, 2), {}),
    (tuple(range(300)), {}),
    ((), {"a": 1}),
    ((), {"a": 1, "b": 2}),
    ((1,), {"a": 1}),
    ((1,), {"b": 2}),
    ((1, 2), {"c": 3}),
    ((1, 2, 3), {"b": 4, "c": 5, "d": 6}),
    ((), {f"name{i}": i for i in range(300)}),
    ((), {"self": 1, "args": 2, "kwargs": 3, "permit": 4, "function": 5}),
    ((), {"not an identifier": 1, "": 2, "ü": 3}),
    ((None,), {"b": None}),
]


def result_of(call, args, kwargs):
    try:
        return call(*args, **kwargs)
    except TypeError as error:
        return str(error)


def test_calls_give_what_the_function_gives(decorator):
    for function in FUNCTIONS:
        throttled = decorator(function)
        for args, kwargs in CALLS:
            assert result_of(throttled, args, kwargs) == result_of(function, args, kwargs)
    stats = throttled.limiter.stats()
    # A call with wrong arguments takes a permit too, and completes it: it looks like a call that failed later.
    assert stats.granted == stats.completed == len(FUNCTIONS) * len(CALLS)
    assert throttled.limiter.peek().in_flight == 0


def test_calls_in_every_syntax(decorator):
    @decorator
    def f(a, b=2, *args, c=3, **kwargs):
        return a, b, args, c, kwargs

    class Owner:
        method = f
        static = staticmethod(f)
        by_class: Any = classmethod(f)

    owner = Owner()
    assert f(1) == (1, 2, (), 3, {})
    assert f(1, c=4) == (1, 2, (), 4, {})
    assert f(*[1, 2, 5], d=6, e=7) == (1, 2, (5,), 3, {"d": 6, "e": 7})
    assert f.__call__(1, b=3) == (1, 3, (), 3, {})
    assert functools.partial(f, 1, c=0)(7, d=8) == (1, 7, (), 0, {"d": 8})
    assert list(map(f, [1], [5])) == [(1, 5, (), 3, {})]
    assert max([3, 1], key=lambda n: f(n)[0]) == 3
    assert owner.method(9, c=1) == (owner, 9, (), 1, {})
    bound = owner.method
    assert bound(9) == (owner, 9, (), 3, {})
    assert bound == owner.method
    assert bound.__self__ is owner
    assert bound.__func__ is f
    assert Owner.method(owner, 9) == (owner, 9, (), 3, {})
    assert owner.static(1) == Owner.static(1) == (1, 2, (), 3, {})
    assert owner.by_class(1) == Owner.by_class(1) == (Owner, 1, (), 3, {})


def test_arguments_are_passed_as_they_are():
    seen = []
    take = throttle(PLENTY)(lambda *args, **kwargs: seen.append((args, kwargs)))
    mutable: list[object] = []
    mapping = {"k": mutable}
    before = sys.getrefcount(mutable), sys.getrefcount(mapping)
    for _ in range(100):
        take(mutable, mapping, x=mutable, **mapping)
    assert all(args[0] is mutable and args[1] is mapping and kwargs["x"] is mutable for args, kwargs in seen)
    assert all(kwargs is not mapping for _, kwargs in seen)
    del seen[:]
    assert (sys.getrefcount(mutable), sys.getrefcount(mapping)) == before


class Described:
    @throttle("5/s")
    def method(self, user: str, *, times: int = 1) -> list[str]:
        """What it does."""
        return [user] * times

    method.mark = "mine"

    @classmethod
    @throttle("5/s")
    def make(cls, user: str) -> "Described":
        return cls()

    @staticmethod
    @throttle("5/s")
    def static(user: str) -> str:
        return user


def test_it_looks_like_the_function():
    function = Described.method.__wrapped__
    throttled: Any = Described.method
    assert inspect.signature(throttled) == inspect.signature(function)
    assert str(inspect.signature(Described().method)) == "(user: str, *, times: int = 1) -> list[str]"
    assert str(inspect.signature(Described.make)) == "(user: str) -> 'Described'"
    assert str(inspect.signature(Described.static)) == "(user: str) -> str"
    for name in functools.WRAPPER_ASSIGNMENTS:
        assert getattr(throttled, name) == getattr(function, name)
    assert typing.get_type_hints(throttled) == {"user": str, "times": int, "return": list[str]}
    assert typing.get_type_hints(Described.make)["return"] is Described
    assert throttled.mark == "mine"
    assert inspect.getsource(throttled) == inspect.getsource(function)
    assert inspect.getdoc(throttled) == "What it does."
    assert isinstance(throttled.limiter, Limiter)
    assert inspect.isroutine(throttled)


def test_help_shows_signature_and_docstring():
    text = pydoc.plain(pydoc.render_doc(worker.double))
    assert "double(number: 'int') -> 'int'" in text
    assert "Twice as much." in text
    text = pydoc.plain(pydoc.render_doc(Described))
    assert "method(self, user: str, *, times: int = 1) -> list[str]" in text
    assert "What it does." in text


def test_repr_says_what_and_by_what():
    assert "double" in repr(worker.double)
    assert "1000/s" in repr(worker.double)


def test_whatever_can_be_called():
    class Adder:
        def __init__(self, base):
            self.base = base

        def __call__(self, number):
            return self.base + number

    five = throttle("5000/s")
    assert five(len)("abc") == 3
    assert five("abc".upper)() == "ABC"
    assert five(lambda x: x + 1)(2) == 3
    assert five(Adder(10))(5) == 15
    assert five(functools.partial(int, base=2))("101") == 5
    assert five(operator.add)(1, 2) == 3
    assert five(five(len))("ab") == 2
    assert five(functools.lru_cache(lambda x: [x]))(1) == [1]
    for wrong in (5, "text", None):
        with pytest.raises(TypeError, match="decorates functions"):
            five(wrong)


def test_a_class_is_refused():
    """Its instances would not be of a class any more, and isinstance would fail far from here."""
    for wrong in (dict, Described):
        with pytest.raises(InvalidUse, match=rf"not the class {wrong.__qualname__}: write `@throttle"):
            throttle("5/s")(wrong)
        with pytest.raises(InvalidUse):
            Limiter("5/s")(wrong)


def test_the_limiter_of_a_function():
    function = throttle("5/s")(len)
    assert limiter_of(function) is function.limiter
    assert limiter_of(Described().method) is Described.method.limiter
    for wrong in (len, Any, Described):
        with pytest.raises(InvalidUse, match="is not throttled"):
            limiter_of(wrong)


def test_an_unknown_option_is_named_with_the_nearest():
    for wrong, meant in (
        ("kay", "key"),
        ("max_wait", "max_waiting"),
        ("nam", "name"),
        ("answer", "answered"),
    ):
        expected = rf"^throttle\(\) got an unexpected keyword argument '{wrong}'; did you mean '{meant}'\?$"
        with pytest.raises(TypeError, match=expected):
            throttle("5/s", **{wrong: 5})
    with pytest.raises(TypeError, match=r"^throttle\(\) got an unexpected keyword argument 'xyz'$"):
        throttle("5/s", xyz=5)


def test_the_order_of_decorators():
    assert Described.make("ann").method("ann", times=2) == ["ann", "ann"]
    assert Described.static("ann") == Described().static("ann") == "ann"
    with pytest.raises(TypeError, match="put @throttle below @staticmethod"):
        throttle("5/s")(staticmethod(len))
    with pytest.raises(TypeError, match="put @throttle below @classmethod"):
        throttle("5/s")(classmethod(type))


def test_properties_and_cached_ones():
    class Owner:
        @property
        @throttle("5/s")
        def plain(self):
            return 1

        @functools.cached_property
        @throttle("5/s")
        def cached(self):
            return [2]

    owner = Owner()
    assert (owner.plain, owner.cached, owner.cached is owner.cached) == (1, [2], True)


def test_inheritance_and_super():
    class Base:
        @throttle("5/s")
        def name(self):
            return "base"

    class Child(Base):
        @throttle("5/s")
        def name(self):
            return "child of " + super().name()

    assert Child().name() == "child of base"


def test_recursion(decorator):
    @decorator
    def factorial(n):
        return 1 if n <= 1 else n * factorial(n - 1)

    assert factorial(50) == functools.reduce(int.__mul__, range(1, 51))
    assert factorial.limiter.stats().completed == 50


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_endless_recursion():
    endless: Any = throttle("100000 concurrent")(lambda: [endless()])
    with pytest.raises(RecursionError):
        endless()
    granted = endless.limiter.stats().granted
    assert granted > 100
    # At the very bottom there is no room to end a permit, nor to abandon it.
    assert endless.limiter.peek().in_flight < 10
    with endless.limiter:
        assert endless.limiter.stats().granted == granted + 1


def test_called_from_many_threads(decorator):
    @decorator
    def call(number):
        return number, threading.get_ident()

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(call, range(4000)))
    assert [number for number, _ in results] == list(range(4000))
    stats = call.limiter.stats()
    assert (stats.granted, stats.completed, call.limiter.peek().in_flight) == (4000, 4000, 0)


def test_exceptions_come_through_with_clean_tracebacks(decorator):
    problem = RuntimeError("mine")

    def inner():
        raise problem

    @decorator
    def call():
        inner()

    for _ in range(3):
        with pytest.raises(RuntimeError) as caught:
            call()
        assert caught.value is problem
        assert problem.__context__ is None
        assert problem.__cause__ is None
        names = [frame.name for frame in traceback.extract_tb(problem.__traceback__)]
        assert names[0].startswith("test_")
        assert names[-2:] == ["call", "inner"]
        assert len(names) <= 6, names
        problem.__traceback__ = None


def test_an_exception_keeps_its_own_cause_and_context(decorator):
    @decorator
    def call():
        try:
            raise KeyError("first")
        except KeyError as error:
            raise RuntimeError("second") from error

    with pytest.raises(RuntimeError) as caught:
        call()
    assert isinstance(caught.value.__cause__, KeyError)

    @decorator
    def nested():
        raise RuntimeError("inside")

    outside = LookupError("outside")
    with pytest.raises(RuntimeError) as caught:  # noqa: PT012
        try:
            raise outside
        except LookupError:
            nested()
    assert caught.value.__context__ is outside


@pytest.mark.parametrize(
    "kind", [KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, Exception, BaseException]
)
def test_the_permit_is_ended_whatever_is_raised(decorator, kind):
    @decorator
    def call():
        raise kind

    with pytest.raises(kind):
        call()
    stats = call.limiter.stats()
    assert (stats.granted, stats.abandoned) == (1, 1)


def test_a_decorator_without_a_limit_is_told_what_it_lacks():
    with pytest.raises(InvalidArgument, match=r'limit=<function .*give one, .*: @throttle\("100/minute"\)'):

        @headway.throttle  # type: ignore[call-overload]
        def fetch():
            pass


def test_nothing_is_called_when_there_is_no_permit():
    called: list[int] = []
    call = throttle("1/hour", timeout=0)(called.append)
    call(1)
    with pytest.raises(RateLimited) as caught:
        call(2)
    assert called == [1]
    assert caught.value.__context__ is None
    assert 3500 < caught.value.retry_after < 3610
    with pytest.raises(RateLimited):
        call()
